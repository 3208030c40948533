package story

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// maxRows is how many machines the live table shows.
const maxRows = 12

// redraw is the pause between two pictures of the live table.
const redraw = 80 * time.Millisecond

// Screen shows the story as it happens: a live table on a terminal, a line for each event elsewhere. Its methods may be called
// from several goroutines.
type Screen struct {
	out  io.Writer
	live bool
	// width is the terminal's.
	width int

	mu    sync.Mutex
	start time.Time
	title string
	steps []shownStep
	total int
	// machines is how many there should be.
	machines int
	rows     []Row
	lines    int // of the picture that is on the terminal
	ended    bool
	ticker   chan struct{}
	done     sync.WaitGroup
}

type shownStep struct {
	title, name string
	start       time.Time
	took        time.Duration
}

// NewScreen returns a screen that writes to out. It is live when out is a terminal and plain is false.
func NewScreen(out io.Writer, plain bool) *Screen {
	s := &Screen{out: out, start: time.Now()}

	if file, ok := out.(interface{ Fd() uintptr }); ok && !plain {
		if width, _, err := term.GetSize(int(file.Fd())); err == nil { //nolint:gosec // A file descriptor is small.
			s.live, s.width = true, width
		}
	}

	return s
}

// Note shows a line that belongs to no machine.
func (s *Screen) Note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.eraseLocked()
	s.printLocked("%s", fmt.Sprintf(format, args...))
	s.drawLocked()
}

func (s *Screen) begin(title string, steps, machines int) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.title, s.total, s.machines, s.start = title, steps, machines, time.Now()

	if !s.live {
		s.printLocked("%s", title)

		return
	}

	s.ticker = make(chan struct{})
	s.done.Go(func() {
		tick := time.NewTicker(redraw)
		defer tick.Stop()

		for {
			select {
			case <-tick.C:
				s.mu.Lock()
				s.eraseLocked()
				s.drawLocked()
				s.mu.Unlock()
			case <-s.ticker:
				return
			}
		}
	})
}

func (s *Screen) beginStep(title string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.steps = append(s.steps, shownStep{title: title, start: time.Now()})

	if !s.live {
		s.printLocked("[%d/%d] %s", len(s.steps), s.total, title)
	}
}

// name says which machine the step is about.
func (s *Screen) name(request string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.steps[len(s.steps)-1].name = request

	if !s.live {
		s.printLocked("  this one: %s", request)
	}
}

func (s *Screen) endStep() {
	s.mu.Lock()
	defer s.mu.Unlock()

	last := &s.steps[len(s.steps)-1]
	last.took = time.Since(last.start)
}

// changed takes a new look at the machines. In plain form it prints what differs, or the sums when there are many machines.
func (s *Screen) changed(rows []Row) {
	s.mu.Lock()
	defer s.mu.Unlock()

	before := s.rows
	s.rows = rows

	switch {
	case s.live:
	case s.machines > maxRows:
		if s.worthALine(rows, before) {
			s.printLocked("  %s", sums(rows))
		}
	default:
		for _, row := range rows {
			if old, ok := find(before, row.Request); !ok || old.String() != row.String() || matched(row, old) != "" {
				s.printLocked("  %s%s", row, matched(row, old))
			}
		}

		for _, old := range before {
			if _, ok := find(rows, old.Request); !ok {
				s.printLocked("  %s: gone", old.Request)
			}
		}
	}
}

// worthALine thins out the sums of many machines: a line for each tenth of them that got somewhere.
func (s *Screen) worthALine(now, before []Row) bool {
	for _, is := range []func(Row) bool{func(Row) bool { return true }, Row.Provisioned, Row.Up} {
		if 10*number(now, is)/s.machines != 10*number(before, is)/s.machines {
			return true
		}
	}

	return false
}

func number(rows []Row, is func(Row) bool) int {
	n := 0

	for _, row := range rows {
		if is(row) {
			n++
		}
	}

	return n
}

func matched(row, old Row) string {
	if row.UUID != "" && row.UUID != old.UUID {
		return " (matched with machine " + row.UUID + ")"
	}

	return ""
}

// end draws the last picture and leaves it there.
func (s *Screen) end() {
	if s.ticker != nil {
		close(s.ticker)
		s.done.Wait()
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	s.eraseLocked()
	s.drawLocked()
	s.lines, s.ended = 0, true
}

// Summary prints how long each step took, unless the last picture shows it, and what else is worth knowing.
func (s *Screen) Summary(facts ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	fmt.Fprintln(s.out)

	if !s.live {
		fmt.Fprintf(s.out, "%s, in %s\n", s.title, seconds(time.Since(s.start)))

		for _, step := range s.steps {
			fmt.Fprintf(s.out, "  %9s  %s\n", seconds(step.took), step.title)
		}
	}

	for _, fact := range facts {
		fmt.Fprintf(s.out, "%s\n", fact)
	}
}

func (s *Screen) printLocked(format string, args ...any) {
	if !s.live {
		fmt.Fprintf(s.out, "%9s  ", seconds(time.Since(s.start)))
	}

	fmt.Fprintf(s.out, format+"\n", args...)
}

func (s *Screen) eraseLocked() {
	if s.lines > 0 {
		fmt.Fprintf(s.out, "\x1b[%dA\x1b[J", s.lines)
		s.lines = 0
	}
}

func (s *Screen) drawLocked() {
	if !s.live || s.title == "" || s.ended {
		return
	}

	picture := s.pictureLocked()
	s.lines = len(picture)

	fmt.Fprintln(s.out, strings.Join(picture, "\n"))
}

// pictureLocked returns the table's lines, none longer than the terminal is wide, so that each takes one line of it.
func (s *Screen) pictureLocked() []string {
	picture := []string{s.title + "   " + seconds(time.Since(s.start)), ""}

	for i, step := range s.steps {
		mark, took := "…", time.Since(step.start)
		if step.took > 0 {
			mark, took = "✓", step.took
		}

		picture = append(picture, fmt.Sprintf(" %s %2d/%d  %-46s %-20s %9s", mark, i+1, s.total, step.title, step.name, seconds(took)))
	}

	picture = append(picture, "", " "+sums(s.rows), fmt.Sprintf(" %-18s %-12s %-5s %-9s %s", "REQUEST", "STATE", "POWER", "MACHINE", "STATUS"))

	for i, row := range s.rows {
		if i == maxRows {
			picture = append(picture, fmt.Sprintf(" and %d more", len(s.rows)-maxRows))

			break
		}

		text := row.Status
		if row.Error != "" {
			text = row.Error
		}

		picture = append(picture, fmt.Sprintf(" %-18s %-12s %-5s %-9.8s %s", row.Request, row.State(), row.Power, row.UUID, text))
	}

	for i, line := range picture {
		if runes := []rune(line); len(runes) >= s.width {
			picture[i] = string(runes[:max(s.width-1, 0)])
		}
	}

	return picture
}

// sums counts the machines.
func sums(rows []Row) string {
	return fmt.Sprintf("%d requested, %d made, %d up, %d leaving", len(rows),
		number(rows, Row.Provisioned), number(rows, Row.Up), number(rows, func(r Row) bool { return r.Leaving }))
}
