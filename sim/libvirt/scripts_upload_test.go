package libvirt_test

import (
	"bytes"
	"encoding/binary"
	"io"

	real "libvirt.org/go/libvirt"
)

// qcow2 is an image without content.
func qcow2(size uint64, backing string) []byte {
	const cluster = 1 << 16

	image := make([]byte, 4*cluster)
	copy(image, "QFI\xfb")
	be := binary.BigEndian
	be.PutUint32(image[4:], 3)
	be.PutUint32(image[20:], 16)        // bits of a cluster
	be.PutUint64(image[24:], size)      //
	be.PutUint32(image[36:], 1)         // entries of the table of tables
	be.PutUint64(image[40:], 3*cluster) // where that is
	be.PutUint64(image[48:], 1*cluster) // where the table of reference counts is
	be.PutUint32(image[56:], 1)         // its clusters
	be.PutUint32(image[96:], 4)         // bits of a reference count
	be.PutUint32(image[100:], 104)      // length of the header
	be.PutUint64(image[cluster:], 2*cluster)

	for i := range 4 {
		be.PutUint16(image[2*cluster+2*i:], 1)
	}

	if backing != "" {
		be.PutUint64(image[8:], 512)
		be.PutUint32(image[16:], uint32(len(backing))) //nolint:gosec // Paths are short.
		copy(image[512:], backing)
	}

	return image
}

// upload sends content into a volume.
func (s *scene) upload(v volume, content []byte) {
	st := made[stream](s, "stream")(s.c.NewStream())
	s.say("upload", v.StartUpload(st, 0, 0, 0))

	for len(content) > 0 {
		n, err := st.Send(content)
		if err != nil {
			s.say("send", err)

			return
		}

		content = content[n:]
	}

	s.say("finish", st.Finish())
	s.say("free", st.Free())
}

// download receives all that there is of a part of a volume.
func (s *scene) download(v volume, offset, length uint64) []byte {
	st := made[stream](s, "stream")(s.c.NewStream())
	s.say("download", v.StartDownload(st, offset, length, 0))

	var out []byte

	buffer := make([]byte, 1<<16)

	for {
		n, err := st.Recv(buffer)
		if err == io.EOF { //nolint:errorlint // It is what Recv returns.
			break
		}

		if err != nil {
			s.say("receive", err)

			break
		}

		out = append(out, buffer[:n]...)
	}

	s.say("finish", st.Finish())
	s.say("free", st.Free())

	return out
}

func scriptUpload(s *scene) {
	p := s.newPool("images")
	v := made[volume](s, "create")(p.CreateVolume(volumeXML("a.raw", "raw", 1)))
	content := bytes.Repeat([]byte("0123456789abcdef"), 20_000)
	s.upload(v, content)
	s.volumeInfo(v)
	s.say("all of it", nil, bytes.Equal(content, s.download(v, 0, 0)))
	s.say("a part", nil, string(s.download(v, 10, 8)))
	s.say("the end", nil, string(s.download(v, uint64(len(content))-4, 100)))
	s.say("beyond the end", nil, len(s.download(v, uint64(len(content))+4, 0)))
	s.upload(v, []byte("short"))
	s.volumeInfo(v)
	s.say("the start", nil, string(s.download(v, 0, 16)))

	st := made[stream](s, "stream")(s.c.NewStream())
	s.say("upload at an offset", v.StartUpload(st, 4, 4, 0))

	_, err := st.Send([]byte("ABCD"))
	s.say("send", err)
	s.say("finish", st.Finish())
	s.say("the start", nil, string(s.download(v, 0, 16)))

	st = made[stream](s, "stream")(s.c.NewStream())
	s.say("upload", v.StartUpload(st, 0, 0, 0))
	_, err = st.Send([]byte("broken"))
	s.say("send", err)
	s.say("abort", st.Abort())
	s.say("abort again", st.Abort())
	_, err = st.Send([]byte("more"))
	s.say("send after that", err)
	s.say("free", st.Free())
	s.volumeInfo(v)

	big := made[volume](s, "larger than its content")(p.CreateVolume(volumeXML("b.raw", "raw", 4096)))
	s.upload(big, []byte("short"))
	s.volumeInfo(big)
}

func scriptUploadSparse(s *scene) {
	p := s.newPool("images")
	v := made[volume](s, "create")(p.CreateVolume(volumeXML("a.raw", "raw", 1)))
	block := bytes.Repeat([]byte("x"), 1<<16)

	st := made[stream](s, "stream")(s.c.NewStream())
	s.say("upload", v.StartUpload(st, 0, 0, real.STORAGE_VOL_UPLOAD_SPARSE_STREAM))
	_, err := st.Send(block)
	s.say("send", err)
	s.say("hole", st.SendHole(10<<20, 0))
	_, err = st.Send(block)
	s.say("send", err)
	s.say("hole at the end", st.SendHole(1<<20, 0))
	s.say("finish", st.Finish())
	s.say("finish again", st.Finish())
	s.volumeInfo(v)

	info, err := v.GetInfo()
	s.say("holes take no space", err, info.Allocation < 1<<20)

	st = made[stream](s, "stream")(s.c.NewStream())
	s.say("download", v.StartDownload(st, 0, 0, real.STORAGE_VOL_DOWNLOAD_SPARSE_STREAM))

	data, holes := 0, int64(0)
	buffer := make([]byte, 1<<16)

	for {
		n, err := st.RecvFlags(buffer, real.STREAM_RECV_STOP_AT_HOLE)
		if n == -3 {
			length, err := st.RecvHole(0)
			if err != nil {
				s.say("hole", err)

				break
			}

			holes += length

			continue
		}

		if err != nil {
			break
		}

		data += n
	}

	s.say("received", nil, data, holes)
	s.say("finish", st.Finish())

	st = made[stream](s, "stream")(s.c.NewStream())
	s.say("upload without holes", v.StartUpload(st, 0, 0, 0))
	s.say("hole", st.SendHole(1<<20, 0))
	s.say("free", st.Free())
}

func scriptUploadUnderWay(s *scene) {
	p := s.newPool("images")
	v := made[volume](s, "create")(p.CreateVolume(volumeXML("a.raw", "raw", 1)))
	st := made[stream](s, "stream")(s.c.NewStream())
	s.say("upload", v.StartUpload(st, 0, 0, 0))
	_, err := st.Send([]byte("one"))
	s.say("send", err)
	s.say("upload again", v.StartUpload(st, 0, 0, 0))
	s.say("refresh", p.Refresh(0))
	s.volumes(p)

	other := made[stream](s, "another stream")(s.c.NewStream())
	s.say("upload by it", v.StartUpload(other, 0, 0, 0))
	_, err = other.Send([]byte("TW"))
	s.say("send", err)
	s.say("finish", other.Finish())
	_, err = st.Send([]byte("two"))
	s.say("send by the first", err)
	s.say("finish", st.Finish())
	s.say("content", nil, string(s.download(v, 0, 0)))

	st = made[stream](s, "stream")(s.c.NewStream())
	s.say("upload", v.StartUpload(st, 0, 0, 0))
	s.say("delete the volume", v.Delete(0))
	_, err = st.Send([]byte("lost"))
	s.say("send", err)
	s.say("finish", st.Finish())
	s.volumes(p)

	v = made[volume](s, "create")(p.CreateVolume(volumeXML("b.raw", "raw", 1)))
	st = made[stream](s, "stream")(s.c.NewStream())
	s.say("upload", v.StartUpload(st, 0, 0, 0))
	_, err = st.Send([]byte("part"))
	s.say("send", err)
	s.say("destroy the pool", p.Destroy())
	s.say("create the pool", p.Create(0))
	s.say("finish", st.Finish())
	s.volumes(p)
	s.say("free", st.Free())
}

func scriptUploadQcow2(s *scene) {
	p := s.newPool("images")
	v := made[volume](s, "create raw")(p.CreateVolume(volumeXML("a", "raw", 1)))
	s.upload(v, qcow2(5<<20, ""))
	s.say("refresh", p.Refresh(0))
	s.volumeInfo(v)

	v = made[volume](s, "create qcow2")(p.CreateVolume(volumeXML("b.qcow2", "qcow2", 1<<20)))
	s.upload(v, qcow2(6<<20, ""))
	s.volumeInfo(v)
	s.say("resize", v.Resize(8<<20, 0))
	s.volumeInfo(v)
	s.upload(v, []byte("no image"))
	s.say("refresh", p.Refresh(0))
	s.volumeInfo(v)
}

func scriptUploadRefused(s *scene) {
	p := s.newPool("images")
	v := made[volume](s, "create")(p.CreateVolume(volumeXML("a.raw", "raw", 1)))

	st := made[stream](s, "stream")(s.c.NewStream())
	_, err := st.Send([]byte("x"))
	s.say("send before the upload", err)
	s.say("finish before the upload", st.Finish())
	s.say("delete", v.Delete(0))
	s.say("upload to what has gone", v.StartUpload(st, 0, 0, 0))
	s.say("download what has gone", v.StartDownload(st, 0, 0, 0))
	s.say("free", st.Free())
}

func scriptResize(s *scene) {
	p := s.newPool("images")
	v := made[volume](s, "create")(p.CreateVolume(volumeXML("a.raw", "raw", 1<<20)))
	s.say("grow", v.Resize(2<<20, 0))
	s.volumeInfo(v)
	s.say("the same size", v.Resize(2<<20, 0))
	s.say("by a difference", v.Resize(1<<20, real.STORAGE_VOL_RESIZE_DELTA))
	s.volumeInfo(v)
	s.say("shrink", v.Resize(1<<20, 0))
	s.say("shrink with the flag", v.Resize(1<<20, real.STORAGE_VOL_RESIZE_SHRINK))
	s.volumeInfo(v)
	s.say("by a negative difference", v.Resize(512<<10, real.STORAGE_VOL_RESIZE_SHRINK|real.STORAGE_VOL_RESIZE_DELTA))
	s.volumeInfo(v)
	s.upload(v, bytes.Repeat([]byte("x"), 512<<10))
	s.say("shrink below what is there", v.Resize(4096, real.STORAGE_VOL_RESIZE_SHRINK))
	s.say("shrink below what is there without the flag", v.Resize(4096, 0))

	q := made[volume](s, "qcow2")(p.CreateVolume(volumeXML("b.qcow2", "qcow2", 1<<20)))
	s.say("grow", q.Resize(2<<20, 0))
	s.volumeInfo(q)
	s.say("shrink", q.Resize(1<<20, 0))
	s.number("shrink with the flag", q.Resize(1<<20, real.STORAGE_VOL_RESIZE_SHRINK))
	s.volumeInfo(q)
	s.say("odd size", q.Resize(2<<20+1, 0))
	s.volumeInfo(q)
	s.say("delete", v.Delete(0))
	s.say("resize what has gone", v.Resize(1<<20, 0))
}

func scriptClone(s *scene) {
	p := s.newPool("images")
	other := s.newPool("other")
	v := made[volume](s, "create")(p.CreateVolume(volumeXML("a.raw", "raw", 1)))
	content := append(bytes.Repeat([]byte("x"), 4096), bytes.Repeat([]byte("y"), 4096)...)
	s.upload(v, content)

	c := made[volume](s, "clone")(p.CloneVolume(volumeXML("b.raw", "raw", 8192), v))
	s.volumeInfo(c)
	s.say("the same", nil, bytes.Equal(content, s.download(c, 0, 0)))

	c = made[volume](s, "larger clone in another pool")(other.CloneVolume(volumeXML("b.raw", "raw", 1<<20), v))
	s.volumeInfo(c)
	s.say("the same", nil, bytes.Equal(content, s.download(c, 0, 8192)))
	s.volumeInfo(made[volume](s, "smaller clone")(p.CloneVolume(volumeXML("c.raw", "raw", 1), v)))
	s.volumeInfo(made[volume](s, "qcow2 clone")(p.CloneVolume(volumeXML("d.qcow2", "qcow2", 1<<20), v)))
	made[volume](s, "clone of the same name")(p.CloneVolume(volumeXML("b.raw", "raw", 8192), v))
	s.say("delete", v.Delete(0))
	_, err := p.CloneVolume(volumeXML("e.raw", "raw", 8192), v)
	s.say("clone of what has gone", err)

	base := made[volume](s, "base")(p.CreateVolume(volumeXML("base.raw", "raw", 1)))
	s.upload(base, content)

	over := made[volume](s, "overlay")(p.CreateVolume(volumeXML("over.qcow2", "qcow2", 1<<20, backingXML(images+"base.raw", "raw"))))
	flat := made[volume](s, "raw clone of an overlay")(p.CloneVolume(volumeXML("flat.raw", "raw", 1<<20), over))
	s.volumeInfo(flat)
	s.say("the same", nil, bytes.Equal(content, s.download(flat, 0, 8192)))
	s.volumes(p)
}
