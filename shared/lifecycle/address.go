package lifecycle

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"time"

	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// addressesAnnotation on a machine request's status tells of its machine's network interfaces, as a JSON list of InterfaceInfo.
// The provider is the one that reaches the cloud: so an operator sees the addresses from wherever he reaches Omni. It is
// written for machines that have not joined too, whose address is what somebody who looks for the reason wants to know.
const addressesAnnotation = "omni-infra.dev/addresses"

// addressTimeout bounds the question for addresses, which the next look waits for.
const addressTimeout = 15 * time.Second

// What a guest says of itself is bounded: mostInterfaces of a machine are shown, and mostIPs of each.
const (
	mostInterfaces = 32
	mostIPs        = 16
)

// InterfaceInfo is a network interface of a machine.
type InterfaceInfo struct {
	MAC string `json:"mac" yaml:"mac"`
	// IPs are the addresses that it has, and Source is who knows: "lease" or "agent".
	IPs    []string `json:"ips,omitempty" yaml:"ips,omitempty"`
	Source string   `json:"source,omitempty" yaml:"source,omitempty"`
	// Missing says why no address is known.
	Missing string `json:"missing,omitempty" yaml:"missing,omitempty"`
}

// lookForAddresses asks the cloud for the machines' addresses, and wakes the requests for which that is news.
func (p *Provider) lookForAddresses(ctx context.Context) {
	addresser, ok := p.cfg.Driver.(driver.Addresser)
	if !ok || ctx.Err() != nil {
		return
	}

	seen, err := ask(ctx, p, addressTimeout, "asking for the machines' addresses", func(ctx context.Context) (map[driver.Ref][]driver.Interface, error) {
		return addresser.Addresses(ctx, p.cfg.ID)
	})
	if err != nil && ctx.Err() == nil && driver.KindOf(err) != driver.KindPending {
		p.log.Debug("not all addresses are seen", zap.Error(err))
	}

	for _, id := range p.looks.sawInterfaces(seen, err == nil) {
		p.queue.add(id)
	}
}

// sawInterfaces takes in the answer of the cloud, and returns the requests for which it is news. What a complete answer leaves
// out is known no more.
func (l *looks) sawInterfaces(seen map[driver.Ref][]driver.Interface, complete bool) (news []string) {
	l.mu.Lock()
	defer l.mu.Unlock()

	if l.interfaces == nil {
		l.interfaces = map[string][]driver.Interface{}
	}

	for ref, interfaces := range seen {
		before, ok := l.interfaces[ref.RequestID]
		l.interfaces[ref.RequestID] = interfaces

		if !ok || !reflect.DeepEqual(before, interfaces) {
			news = append(news, ref.RequestID)
		}
	}

	if !complete {
		return news
	}

	// One that was seen for the last time by another process counts too.
	for id := range l.last {
		if _, ok := seen[driver.Ref{ProviderID: l.last[id].ProviderID, RequestID: id}]; ok {
			continue
		}

		if before, ok := l.interfaces[id]; !ok || before != nil {
			l.interfaces[id] = nil
			news = append(news, id)
		}
	}

	return news
}

// interfacesOf returns what was last told of a machine's network interfaces, and whether anything was.
func (l *looks) interfacesOf(id string) ([]driver.Interface, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()

	interfaces, ok := l.interfaces[id]

	return interfaces, ok
}

// showAddresses writes what is known of the machine's addresses, if anything is.
func (p *Provider) showAddresses(ctx context.Context, id string) error {
	interfaces, ok := p.looks.interfacesOf(id)
	if !ok {
		return nil
	}

	text, err := interfaceText(interfaces)
	if err != nil {
		return err
	}

	_, err = ensure(ctx, p, p.statuses, infra.NewMachineRequestStatus(id), func(s *infra.MachineRequestStatus) {
		if text == "" {
			s.Metadata().Annotations().Delete(addressesAnnotation)
		} else {
			s.Metadata().Annotations().Set(addressesAnnotation, text)
		}
	})

	return wrap(err, "show the addresses of the machine of %q in Omni", id)
}

func interfaceText(interfaces []driver.Interface) (string, error) {
	if len(interfaces) == 0 {
		return "", nil
	}

	infos := make([]InterfaceInfo, min(len(interfaces), mostInterfaces))
	for i, nic := range interfaces[:len(infos)] {
		infos[i] = InterfaceInfo{MAC: nic.MAC, Source: nic.Source, Missing: nic.Missing}

		for _, ip := range nic.IPs[:min(len(nic.IPs), mostIPs)] {
			// The zone is a word of the guest's, and means nothing elsewhere.
			infos[i].IPs = append(infos[i].IPs, ip.WithZone("").String())
		}
	}

	text, err := json.Marshal(infos)
	if err != nil {
		return "", fmt.Errorf("encode addresses: %w", err)
	}

	return string(text), nil
}

// interfacesOf reads what a provider wrote; a text that another release wrote otherwise tells nothing.
func interfacesOf(status *infra.MachineRequestStatus) []InterfaceInfo {
	text, ok := status.Metadata().Annotations().Get(addressesAnnotation)
	if !ok {
		return nil
	}

	var infos []InterfaceInfo
	if json.Unmarshal([]byte(text), &infos) != nil {
		return nil
	}

	return infos
}
