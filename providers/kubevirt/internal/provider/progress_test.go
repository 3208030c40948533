package provider_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/snapshots"
)

func TestWhatMakesNoProgressIsSaidToBeStuckWithSomethingToLookAt(t *testing.T) {
	for _, test := range []struct {
		name, data string
		tune       func(*kubevirt.Options)
		trouble    func(l *lab)
		within     time.Duration
		want       string
	}{
		{
			name: "import", tune: func(o *kubevirt.Options) { o.CDI.Times.Import = 400 * time.Hour }, data: classData,
			within: 17 * time.Minute, want: "look at pod omni/importer-",
		},
		{
			name: "importer that is never ready", tune: func(o *kubevirt.Options) { o.CDI.Times.Schedule = 400 * time.Hour }, data: classData,
			within: 17 * time.Minute, want: "look at pod omni/importer-",
		},
		{
			name: "clone", tune: func(o *kubevirt.Options) { o.CDI.Times.Clone = 400 * time.Hour }, data: classData,
			within: 65 * time.Minute, want: "look at volume claim omni/",
		},
		{
			name: "driver of snapshots", tune: func(*kubevirt.Options) {}, data: snapshotClass,
			trouble: func(l *lab) { l.Snapshots.Inject(snapshots.Fault{Slow: true}) },
			within:  65 * time.Minute, want: "the driver of its snapshot class",
		},
		{
			name: "no snapshot controller", tune: func(*kubevirt.Options) {}, data: snapshotClass,
			trouble: func(l *lab) { l.Snapshots.Inject(snapshots.Fault{Absent: true}) },
			within:  17 * time.Minute, want: "whether the cluster has a snapshot controller",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				opts := kubevirt.Options{Enter: keepImages}
				test.tune(&opts)
				l := newLab(t, opts)

				if test.trouble != nil {
					test.trouble(l)
				}

				o := l.provision(requestOf("r-1", test.data), 10*time.Minute)
				require.Equal(t, driver.KindPending, driver.KindOf(o.err), "it may go on: %v", o.said)

				o = l.provision(requestOf("r-1", test.data), test.within-10*time.Minute)
				require.Error(t, o.err)
				require.Equal(t, driver.KindTransient, driver.KindOf(o.err), "%v", o.said)
				assert.ErrorContains(t, o.err, "no progress since 2000-01-01T00:0")
				assert.ErrorContains(t, o.err, test.want)
			})
		})
	}
}

func TestSlowImportThatProgressesIsNeverStuck(t *testing.T) {
	bubble(t, func(t *testing.T) {
		opts := kubevirt.Options{Enter: keepImages}
		opts.CDI.Times.Import = 50 * time.Minute // It tells of each quarter.
		l := newLab(t, opts)

		for end := time.Now().Add(45 * time.Minute); time.Now().Before(end); time.Sleep(5 * time.Second) {
			err := l.attempt(t.Context(), requestOf("r-1", classData))
			require.Equal(t, driver.KindPending, driver.KindOf(err), "%v", err)
		}

		l.mustProvision("r-1")
	})
}
