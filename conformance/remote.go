package conformance

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/go-api-signature/pkg/pgp"
	"github.com/siderolabs/go-api-signature/pkg/serviceaccount"
	"github.com/siderolabs/omni/client/pkg/access"
	"github.com/siderolabs/omni/client/pkg/client"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"
)

// Remote is an Omni that is there already. The suite makes its infra providers and their requests there, with names that begin with
// the provider's id, and touches nothing else.
type Remote struct {
	// URL is its API's address, and Key the key of a service account with the role Admin, which is a secret.
	URL, Key string
	// InsecureSkipVerify takes any TLS certificate.
	InsecureSkipVerify bool
	// Adopt allows an infra provider that exists already, and has no machine requests. It gets a further key, and is not removed in
	// the end.
	Adopt bool
}

const (
	// remoteTime is how long an Omni may take for a call, and keyTime how long a provider's key is valid.
	remoteTime = 30 * time.Second
	keyTime    = 24 * time.Hour
	// removalPause lies between two looks at machines that Omni is removing.
	removalPause = 200 * time.Millisecond
	// roleOfProviders is the role of infra providers' service accounts.
	roleOfProviders = "InfraProvider"
)

// remote is a connection to it.
type remote struct {
	Remote

	client *client.Client
	state  state.State
	// keys are those of the providers of this run, and made the ids of the ones that were not there before.
	keys map[string]string
	made []string
}

func openRemote(ctx context.Context, r Remote) (*remote, error) {
	u, err := url.Parse(r.URL)
	if err != nil || u.Host == "" || u.User != nil {
		return nil, errors.New("URL of Omni: want https://HOST, without user and password")
	}

	if _, err := serviceaccount.Decode(r.Key); err != nil {
		return nil, errors.New("admin key: want what OMNI_SERVICE_ACCOUNT_KEY holds for a service account with the role Admin")
	}

	c, err := client.New(r.URL, client.WithServiceAccount(r.Key), client.WithInsecureSkipTLSVerify(r.InsecureSkipVerify))
	if err != nil {
		return nil, fmt.Errorf("connect to Omni at %s: %w", r.URL, err)
	}

	opened := &remote{Remote: r, client: c, state: c.Omni().State(), keys: map[string]string{}}

	ctx, cancel := context.WithTimeout(ctx, remoteTime)
	defer cancel()

	// It also shows whether the key is good for anything.
	if _, err := safe.StateListAll[*infra.Provider](ctx, opened.state); err != nil {
		return nil, errors.Join(fmt.Errorf("ask Omni at %s for its infra providers: %w", r.URL, err), c.Close())
	}

	return opened, nil
}

// createProvider makes an infra provider, once in a run.
func (r *remote) createProvider(ctx context.Context, id string) (string, error) {
	if key, ok := r.keys[id]; ok {
		return key, nil
	}

	err := r.state.Create(ctx, infra.NewProvider(id))

	switch {
	case err == nil:
		r.made = append(r.made, id)
	case !state.IsConflictError(err):
		return "", fmt.Errorf("create infra provider %q: %w", id, err)
	case !r.Adopt:
		return "", fmt.Errorf("infra provider %q exists already: choose another id, or allow that the suite works with this one", id)
	default:
		if err := r.unused(ctx, id); err != nil {
			return "", err
		}
	}

	account := access.ParseServiceAccountFromName(access.InfraProviderServiceAccountPrefix + id)
	name := access.InfraProviderServiceAccountPrefix + id

	key, err := pgp.GenerateKey(account.BaseName, "omni-conformance", account.FullID(), keyTime)
	if err != nil {
		return "", err
	}

	public, err := key.ArmorPublic()
	if err != nil {
		return "", err
	}

	if slices.Contains(r.made, id) {
		_, err = r.client.Management().CreateServiceAccount(ctx, name, public, roleOfProviders, false)
	} else {
		_, err = r.client.Management().RenewServiceAccount(ctx, name, public)
	}

	if err != nil {
		return "", fmt.Errorf("make a key for infra provider %q: %w", id, err)
	}

	r.keys[id], err = serviceaccount.Encode(name, key)

	return r.keys[id], err
}

// unused returns an error if somebody has machines of an infra provider, which the suite would restart, crash and cut off.
func (r *remote) unused(ctx context.Context, id string) error {
	requests, err := safe.StateListAll[*infra.MachineRequest](ctx, r.state, state.WithLabelQuery(resource.LabelEqual(omni.LabelInfraProviderID, id)))
	if err != nil {
		return fmt.Errorf("look for machine requests of infra provider %q: %w", id, err)
	}

	if requests.Len() > 0 {
		return fmt.Errorf("infra provider %q is in use, by machine request %q: want one without requests", id, requests.Get(0).Metadata().ID())
	}

	return nil
}

// close removes the infra providers that the run has made. Omni v1.9 takes the machine request sets of all users along with an infra
// provider, whoever's they are; so where there are any, the infra providers stay, and the error says so.
func (r *remote) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), remoteTime)
	defer cancel()

	err := r.removeProviders(ctx)
	if err != nil && len(r.made) > 0 {
		err = fmt.Errorf("infra providers %v are left in Omni: %w", r.made, err)
	}

	return errors.Join(err, r.client.Close())
}

func (r *remote) removeProviders(ctx context.Context) error {
	if len(r.made) == 0 {
		return nil
	}

	sets, err := safe.StateListAll[*omni.MachineRequestSet](ctx, r.state)
	if err != nil {
		return fmt.Errorf("look for machine request sets: %w", err)
	}

	for set := range sets.All() {
		if set.Metadata().Owner() == "" && !slices.Contains(r.made, set.TypedSpec().Value.ProviderId) {
			return fmt.Errorf("machine request set %q of provider %q would go with them, by a defect of Omni; "+
				"remove them when there is none: omnictl infraprovider delete ID", set.Metadata().ID(), set.TypedSpec().Value.ProviderId)
		}
	}

	for len(r.made) > 0 {
		id := r.made[0]

		if err := r.removeMachines(ctx, id); err != nil {
			return err
		}

		if err := r.state.TeardownAndDestroy(ctx, infra.NewProvider(id).Metadata()); err != nil && !state.IsNotFoundError(err) {
			return fmt.Errorf("remove infra provider %q: %w", id, err)
		}

		r.made = r.made[1:]
	}

	return nil
}

// removeMachines removes the machines of an infra provider that Omni still knows, and waits until it does not. They are those whose
// request is gone: one that was being removed when it joined stays in Omni until somebody removes its link.
func (r *remote) removeMachines(ctx context.Context, id string) error {
	for {
		machines, err := safe.StateListAll[*omni.Machine](ctx, r.state, state.WithLabelQuery(resource.LabelEqual(omni.LabelInfraProviderID, id)))
		if err != nil {
			return fmt.Errorf("look for machines of infra provider %q: %w", id, err)
		}

		if machines.Len() == 0 {
			return nil
		}

		for m := range machines.All() {
			err := r.state.TeardownAndDestroy(ctx, siderolink.NewLink(m.Metadata().ID(), nil).Metadata())
			if err != nil && !state.IsNotFoundError(err) {
				return fmt.Errorf("remove machine %q of infra provider %q: %w", m.Metadata().ID(), id, err)
			}
		}

		select {
		case <-time.After(removalPause):
		case <-ctx.Done():
			return fmt.Errorf("machine %q of infra provider %q is left in Omni: %w", machines.Get(0).Metadata().ID(), id, ctx.Err())
		}
	}
}
