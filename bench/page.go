package main

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/version"
)

// The table stands in the page between these.
const (
	pageBegin = "<!-- numbers: written by `make bench` -->"
	pageEnd   = "<!-- end of numbers -->"
)

// page writes the table into a page.
func (b *bench) page(file, loadBefore, loadAfter string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, ok := bytes.Cut(text, []byte(pageBegin))
	_, after, ended := bytes.Cut(rest, []byte(pageEnd))
	if !ok || !ended {
		return fmt.Errorf("%s has no place for the table: %s … %s", file, pageBegin, pageEnd)
	}
	var out bytes.Buffer
	out.Write(before)
	fmt.Fprintf(&out, "%s\n\n", pageBegin)
	fmt.Fprintf(&out, "%s (%s), %s, %s/%s, %d cores, %s. Load of the machine %s at the start and %s at the end.\n",
		version.Version, revision(), time.Now().UTC().Format(time.DateOnly), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version(), loadBefore, loadAfter)
	section := ""
	for i := range b.results {
		r := &b.results[i]
		if r.Section != section {
			section = r.Section
			fmt.Fprintf(&out, "\n**%s**: %s\n\n| what | value | unit | target | met | note |\n| --- | ---: | --- | --- | --- | --- |\n", section, about(section))
		}
		fmt.Fprintf(&out, "| %s | %s | %s | %s | %s | %s |\n", r.Name, r.figure(), r.Unit, r.Target, r.met(), r.Note)
	}
	fmt.Fprintf(&out, "\n%s", pageEnd)
	out.Write(after)
	return os.WriteFile(file, out.Bytes(), 0o644)
}

func about(section string) string {
	for _, s := range sections() {
		if s.name == section {
			return s.about
		}
	}
	return ""
}

// met says whether the figure keeps its target; empty when there is none that
// a number can break.
func (r *result) met() string {
	how, bound, ok := cutTarget(r.Target)
	if !ok {
		return ""
	}
	kept := map[string]bool{"at least": r.Value >= bound, "at most": r.Value <= bound, "below": r.Value < bound}
	if kept[how] {
		return "yes"
	}
	return "**no**"
}

func cutTarget(target string) (how string, bound float64, ok bool) {
	for _, how := range []string{"at least", "at most", "below"} {
		if rest, found := strings.CutPrefix(target, how+" "); found {
			_, err := fmt.Sscan(rest, &bound)
			return how, bound, err == nil
		}
	}
	return "", 0, false
}

// loadNow is the load average of the last minute.
func loadNow() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	first, _, _ := strings.Cut(string(text), " ")
	return first
}

// revision is the commit that was built.
func revision() string {
	if version.Revision != "" {
		return version.Revision
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && len(s.Value) >= 12 {
				return s.Value[:12]
			}
		}
	}
	return "unknown revision"
}
