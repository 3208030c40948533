package conformance

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/omni-infra/omni-infra-providers/conformance/report"
	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// Wire runs the suite on a provider's program, on the real clock: all cases that can be judged from outside. Command, Provider and
// Data are required.
type Wire struct {
	// Command is the program with its arguments. In these {id} stands for the provider's id. Its environment is that of this process
	// with OMNI_ENDPOINT, OMNI_SERVICE_ACCOUNT_KEY and PROVIDER_ID.
	Command []string
	// Provider is the provider's id in Omni and its name in reports, a DNS label. A case with two providers also makes one with "-2"
	// behind it.
	Provider string
	// Data is class data of a good machine, a YAML or JSON mapping.
	Data string
	// Claims and Waive are as in Options.
	Claims []Feature
	Waive  map[string]string
	// Only selects cases by id and name; nil means all.
	Only *regexp.Regexp

	// Remote is an Omni that is there already; nil means a simulated one of the suite's own, fresh for each case.
	Remote *Remote
	// Local says how the simulated Omni is reached.
	Local Local
	// Hook is the program that shows the cloud; empty means that the cloud cannot be seen. docs/hook.md has its protocol.
	Hook string
	// SimulateMachines lets simulated machines join in the place of those that the provider makes, for clouds that boot nothing.
	SimulateMachines bool

	// TalosVersion is what requests ask for; empty means 1.13.5.
	TalosVersion string
	// Patience is how long anything is waited for; zero means two minutes. Calm is how long nothing must happen before it is taken
	// that nothing will; zero means 15 seconds.
	Patience, Calm time.Duration

	// Hurry, when it is closed, keeps a case that has failed or was interrupted from taking back what it has left; nil means never.
	// The provider's processes are ended all the same.
	Hurry <-chan struct{}

	// Progress is called when a case begins, with an empty verdict, and when it has ended; nil means not to.
	Progress func(report.Case)
	// Again returns the command that runs a case once more; nil means that there is none.
	Again func(report.Case) string
}

// Local says how the simulated Omni is reached. The zero value is right for a provider and machines on this host.
type Local struct {
	// Listen and MachineListen are the addresses of its API and of the one that machines join by; empty means 127.0.0.1:0.
	Listen, MachineListen string
	// MachineURL is what machines are told to join by; empty means grpc:// and the address.
	MachineURL string
	// FactoryURL is the image factory that providers are pointed to; empty means "https://factory.talos.dev".
	FactoryURL string
}

// Cases returns all cases of the suite, without verdicts.
func Cases() []report.Case {
	var all []report.Case

	for _, c := range cases() {
		all = append(all, c.entry())
	}

	return all
}

// errInterrupted is what cases end with that were not judged since the run was ended.
var errInterrupted = errors.New("interrupted")

// Run judges the program, and takes back what it asked of Omni, also when ctx ends. The error is not nil if it could not begin.
func (w Wire) Run(ctx context.Context) (report.Report, error) {
	s, err := w.suite()
	if err != nil {
		return report.Report{}, err
	}

	run := &wireRun{Wire: w, suite: s}

	if w.Remote != nil {
		if run.remote, err = openRemote(ctx, *w.Remote); err != nil {
			return report.Report{}, err
		}
	}

	seconds := map[string]float64{}

	for _, c := range run.order() {
		if w.Progress != nil {
			w.Progress(c.entry())
		}

		start, entry := time.Now(), c.entry()

		if run.judge(ctx, c) {
			entry.Seconds = time.Since(start).Seconds()
		}

		entry.Verdict, entry.Reason = s.of(c).verdict, s.of(c).reason
		seconds[c.id] = entry.Seconds

		if w.Progress != nil {
			w.Progress(entry)
		}
	}

	if run.remote != nil {
		err = run.remote.close()
	}

	result := s.result(run.where())
	for i := range result.Cases {
		result.Cases[i].Seconds = seconds[result.Cases[i].ID]
	}

	return result, err
}

func (w *Wire) suite() (*suite, error) {
	var problems []error

	if len(w.Command) == 0 {
		problems = append(problems, errors.New("Wire.Command is required: the provider's program"))
	}

	if !regexp.MustCompile(`^[a-z]([a-z0-9-]{0,40}[a-z0-9])?$`).MatchString(w.Provider) {
		problems = append(problems, fmt.Errorf("provider id %q: want a DNS label of at most 42 characters that begins with a letter", w.Provider))
	}

	if w.Patience < 0 || w.Calm < 0 {
		problems = append(problems, errors.New("patience and calm: want times that are not negative"))
	}

	if w.Patience == 0 {
		w.Patience = 2 * time.Minute
	}

	if w.Calm == 0 {
		w.Calm = 15 * time.Second
	}

	if w.TalosVersion == "" {
		w.TalosVersion = talosVersion
	}

	w.TalosVersion = strings.TrimPrefix(w.TalosVersion, "v")

	all := cases()
	if w.Only != nil {
		all = slices.DeleteFunc(all, func(c testCase) bool { return !w.Only.MatchString(c.id) && !w.Only.MatchString(c.name) })
	}

	if len(all) == 0 {
		problems = append(problems, fmt.Errorf("no case is called like %s", w.Only))
	}

	s, err := planSuite(Options{Provider: w.Provider, Claims: w.Claims, Waive: w.Waive}, all)

	return s, errors.Join(append(problems, err)...)
}

// wireRun is one run of the suite over the wire.
type wireRun struct {
	Wire

	suite  *suite
	remote *remote
	// dead says why no case can be judged any more.
	dead string
}

func (r *wireRun) where() string {
	text := "over the wire with a simulated Omni"
	if r.remote != nil {
		text = "over the wire with an Omni that was there already"
	}

	if r.Hook == "" {
		text += ", without a look at the cloud"
	}

	return text
}

// order returns the cases in the order in which they are run: the one that shows whether the program works at all comes first.
func (r *wireRun) order() []testCase {
	return slices.SortedStableFunc(slices.Values(r.suite.cases), func(a, b testCase) int {
		switch first := startCases[0].id; first {
		case a.id:
			return -1
		case b.id:
			return 1
		}

		return 0
	})
}

// judge runs a case, if it can be run here, and keeps how it ended. It returns false if the case was not run.
func (r *wireRun) judge(ctx context.Context, c testCase) bool {
	s := r.suite

	if !s.claimed(c) {
		return false
	}

	if ctx.Err() != nil {
		r.dead = "not run: " + errInterrupted.Error()
	}

	switch lacks := r.lacks(c); {
	case lacks != "":
		s.of(c).verdict, s.of(c).reason = unseen, "needs "+lacks

		return false
	case r.dead != "":
		s.of(c).verdict, s.of(c).reason = broken, r.dead

		return false
	}

	f, err := r.attempt(ctx, c)

	switch {
	case errors.Is(err, errUnseen):
		s.of(c).verdict, s.of(c).reason = unseen, err.Error()

		return true
	case err != nil:
		s.of(c).verdict, s.of(c).reason = broken, err.Error()

		return true
	}

	if f != nil {
		f.rule = c.rule

		if r.Again != nil {
			f.again = r.Again(c.entry())
		}

		if c.id == startCases[0].id {
			r.dead = fmt.Sprintf("not run: the program fails %s %s", c.id, c.name)
		}
	}

	v, text := s.judge(c, f)
	s.of(c).verdict, s.of(c).failure = v, f

	// A waived case that passes fails without a failure.
	if v == failed && f == nil {
		s.of(c).reason = text
	}

	return true
}

// lacks names the first means of the case that there is not here.
func (r *wireRun) lacks(c testCase) string {
	have := map[means]bool{
		cloudView: r.Hook != "", cloudHand: r.Hook != "", bootCount: r.Hook != "",
		simulatedOmni: r.remote == nil,
	}

	for _, m := range c.uses {
		if !have[m] {
			return string(m)
		}
	}

	return ""
}

// attempt runs a case in a world of its own. An error says that it could not be judged.
func (r *wireRun) attempt(ctx context.Context, c testCase) (f *failure, err error) {
	e := newEnv(r.Provider)
	bench := &wireBench{env: e, command: r.Command}
	e.bench = bench

	defer e.end()
	defer bench.close()

	err = catch(func() {
		r.equip(ctx, e, bench, c)

		f = e.live(c, trouble{})
	})

	if f != nil || err != nil {
		e.tidy(r.Hurry)
	}

	switch {
	case err == nil || errors.Is(err, errUnseen):
	case ctx.Err() != nil:
		err = errInterrupted
	default:
		err = errors.New(e.history().Redact(err.Error()))
	}

	return f, err
}

// equip gives a case its Omni, its view of the cloud and its provider.
func (r *wireRun) equip(ctx context.Context, e *env, bench *wireBench, c testCase) {
	e.asked, e.data, e.talosVersion = ctx, r.Data, r.TalosVersion
	e.prefix = fmt.Sprintf("%s-%s-", r.Provider, strings.ToLower(c.id))
	e.pace = pace{patience: r.Patience, longest: r.Calm, poll: 100 * time.Millisecond, slowPoll: 500 * time.Millisecond}
	e.foreign = map[string]bool{}
	e.open(ledger.New())

	if r.remote != nil {
		e.state, bench.endpoint, bench.create = r.remote.state, r.remote.URL, r.remote.createProvider
	} else if err := r.simulate(ctx, e, bench, c.omni); err != nil {
		panic(err)
	}

	if r.Hook != "" {
		e.cloud = &hook{program: r.Hook, env: e, countsBoots: slices.Contains(c.uses, bootCount)}
	}

	e.key = e.createProvider(e.provider)
	e.follow()

	if e.omni != nil {
		e.follow()
	}

	// What failed cases have left is not this one's fault.
	for _, m := range e.machines() {
		e.foreign[m.ID] = true
	}

	if r.SimulateMachines {
		e.tasks.Go(e.simulateMachines)
	}
}

// catch runs f and returns the error that it panics with, nil if it does not.
func catch(f func()) (err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case runtime.Error:
			err = fmt.Errorf("the suite itself fails: %w", p)
		case error:
			err = p
		default:
			err = fmt.Errorf("the suite itself fails: %v", p)
		}
	}()

	f()

	return nil
}
