//go:build real

package provider

import (
	"cmp"
	"crypto/ed25519"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
)

// sshServer is a server as a hypervisor's host has it: it lets in whoever has the key, and runs what it is told to, or whatever it is told
// a forced command.
type sshServer struct {
	port       int
	key, known string // files of the client
}

func newSSHServer(t *testing.T, forced string) sshServer {
	t.Helper()

	dir := t.TempDir()
	write := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, content, 0o600))

		return path
	}

	newKey := func() (ed25519.PrivateKey, ssh.Signer) {
		_, key, err := ed25519.GenerateKey(nil)
		require.NoError(t, err)

		signer, err := ssh.NewSignerFromKey(key)
		require.NoError(t, err)

		return key, signer
	}

	_, host := newKey()
	key, client := newKey()

	block, err := ssh.MarshalPrivateKey(key, "")
	require.NoError(t, err)

	config := &ssh.ServerConfig{PublicKeyCallback: func(_ ssh.ConnMetadata, offered ssh.PublicKey) (*ssh.Permissions, error) {
		if string(offered.Marshal()) != string(client.PublicKey().Marshal()) {
			return nil, errors.New("unknown key")
		}

		return nil, nil
	}}
	config.AddHostKey(host)

	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)

	var wg sync.WaitGroup

	wg.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}

			wg.Go(func() { serveSSH(conn, config, forced) })
		}
	})
	t.Cleanup(func() {
		require.NoError(t, listener.Close())
		wg.Wait()
	})

	port := listener.Addr().(*net.TCPAddr).Port

	return sshServer{
		port: port, key: write("key", pem.EncodeToMemory(block)),
		known: write("known_hosts", fmt.Appendf(nil, "[127.0.0.1]:%d %s", port, ssh.MarshalAuthorizedKey(host.PublicKey()))),
	}
}

func serveSSH(conn net.Conn, config *ssh.ServerConfig, forced string) {
	defer conn.Close() //nolint:errcheck // Nobody is left to be told.

	_, channels, requests, err := ssh.NewServerConn(conn, config)
	if err != nil {
		return
	}

	go ssh.DiscardRequests(requests)

	for wanted := range channels {
		channel, requests, err := wanted.Accept()
		if err != nil {
			return
		}

		go func() {
			for request := range requests {
				var payload struct{ Command string }

				isExec := request.Type == "exec" && ssh.Unmarshal(request.Payload, &payload) == nil
				_ = request.Reply(isExec, nil)

				if isExec {
					go execSSH(channel, cmp.Or(forced, payload.Command))
				}
			}
		}()
	}
}

func execSSH(channel ssh.Channel, command string) {
	defer channel.Close() //nolint:errcheck // The other end may have gone.

	cmd := exec.Command("sh", "-c", command)
	cmd.Stdout, cmd.Stderr = channel, channel.Stderr()

	input, err := cmd.StdinPipe()
	if err != nil {
		return
	}

	go func() {
		buffer := make([]byte, 1<<15)

		for {
			n, err := channel.Read(buffer)
			if n > 0 {
				_, _ = input.Write(buffer[:n])
			}

			if err != nil {
				_ = input.Close()

				return
			}
		}
	}()

	status := make([]byte, 4)
	if cmd.Run() != nil {
		status[3] = 1
	}

	_, _ = channel.SendRequest("exit-status", false, status)
}
