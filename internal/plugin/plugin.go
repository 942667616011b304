// Package plugin hands one delivery to an executable on its standard input and
// reads what became of it from its standard output: one line of JSON each way. The
// protocol stands in docs/reference/targets.md.
//
// An executable is given nothing else: no environment but a fixed one, no file of
// the daemon, no argument that a caller chose. Its time, its output and its
// processes are bounded.
package plugin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/holdfast-dev/holdfast/internal/canonjson"
	"github.com/holdfast-dev/holdfast/internal/delivery"
	"github.com/holdfast-dev/holdfast/internal/secret"
)

// Protocol names the form of the line that a plugin reads.
const Protocol = "holdfast.plugin/1"

const (
	maxAnswer     = 64 << 10 // bytes of standard output; past it the plugin is ended
	maxErrors     = 8 << 10  // bytes of standard error that are kept; the rest is dropped
	maxBeyond     = 64 << 10 // bytes of it that are read beyond, to see a secret whole that stands at the cut
	maxDetail     = 512      // bytes
	maxRetryAfter = time.Hour
	waitDelay     = time.Second // for pipes that a process of the plugin holds open
)

// environment is the whole environment of a plugin.
var environment = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8"}

// Plugin is an executable, as the configuration names it.
type Plugin struct {
	Command []string // the executable by its path, and its arguments
	Timeout time.Duration
	// Secrets gives the values that are handed over, by name. Its error holds none.
	Secrets func() (map[string]string, error)
}

// Check says whether the executable can be run, as far as its file tells.
func Check(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	switch {
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is no regular file", path)
	case info.Mode().Perm()&0o111 == 0:
		return fmt.Errorf("%s is not executable", path)
	case info.Mode().Perm()&0o002 != 0:
		return fmt.Errorf("%s can be written by everybody", path)
	}
	return nil
}

// question is the line that a plugin reads.
type question struct {
	Protocol   string            `json:"protocol"`
	DeliveryID string            `json:"delivery_id"`
	Message    jsontext.Value    `json:"message"` // the body, the same at every attempt
	Secrets    map[string]string `json:"secrets,omitzero"`
}

// Send makes one attempt and returns soon after ctx ends, or the plugin's time is
// over. Then, and when the plugin has ended, every process of its group is ended.
func Send(ctx context.Context, p Plugin, id string, body []byte) delivery.Result {
	secrets, err := p.Secrets()
	if err != nil {
		return delivery.Result{Code: "secret_unavailable", Detail: err.Error()}
	}
	line, err := json.Marshal(question{Protocol: Protocol, DeliveryID: id, Message: body, Secrets: secrets}, json.Deterministic(true))
	if err != nil {
		return delivery.Result{Code: "invalid", Permanent: true, Detail: "the body has no form that a plugin can be handed"}
	}
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.Command[0], p.Command[1:]...)
	said := &output{limit: maxAnswer, over: cancel}
	hidden := privateOf(secrets)
	noise := &output{limit: maxErrors + min(hidden.Reach(), maxBeyond)}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(append(line, '\n')), said, noise
	cmd.Env, cmd.Dir, cmd.WaitDelay = environment, filepath.Dir(p.Command[0]), waitDelay
	group(cmd)
	if err := cmd.Start(); err != nil {
		code := "server_plugin_unavailable"
		if errors.Is(err, fs.ErrNotExist) {
			return delivery.Result{Code: code, Detail: "the plugin's executable is not there"}
		}
		return delivery.Result{Code: code, Detail: "the plugin could not be started"}
	}
	end(cmd)
	err = cmd.Wait()
	result := judge(ctx, err, said, hidden)
	result.Excerpt = hidden.excerpt(noise.bytes)
	return result
}

func judge(ctx context.Context, err error, said *output, hidden *private) delivery.Result {
	switch {
	case said.passed:
		return delivery.Result{Code: "server_plugin_output", Detail: fmt.Sprintf("the plugin said more than %d bytes and was ended", maxAnswer)}
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return delivery.Result{Code: "timeout", Detail: "the plugin took too long and was ended"}
	case ctx.Err() != nil:
		return delivery.Result{Code: "interrupted", Detail: "the attempt was interrupted"}
	case err != nil && !errors.Is(err, exec.ErrWaitDelay):
		return delivery.Result{Code: "server_plugin_failed", Detail: "the plugin ended with a failure"}
	}
	result, err := parse(said.bytes, hidden)
	if err != nil {
		return delivery.Result{Code: "server_plugin_answer", Detail: "what the plugin said is no answer: " + err.Error()}
	}
	return result
}

// answer is the line that a plugin writes.
type answer struct {
	Delivered  *bool  `json:"delivered"`
	Code       string `json:"code"`
	Detail     string `json:"detail"`
	RetryAfter int64  `json:"retry_after"` // seconds
	Permanent  bool   `json:"permanent"`
}

var codeForm = regexp.MustCompile(`^[a-z0-9_]{0,48}$`)

// parse reads the one line of an answer. The error holds nothing of it.
func parse(b []byte, hidden *private) (delivery.Result, error) {
	line, rest, _ := bytes.Cut(b, []byte("\n"))
	if len(bytes.TrimSpace(rest)) > 0 {
		return delivery.Result{}, errors.New("it has more than one line")
	}
	var a answer
	if err := json.Unmarshal(line, &a, json.RejectUnknownMembers(true)); err != nil {
		return delivery.Result{}, errors.New("it is no JSON object of the protocol")
	}
	switch {
	case a.Delivered == nil:
		return delivery.Result{}, errors.New("delivered is missing")
	case *a.Delivered:
		return delivery.Result{Delivered: true}, nil
	case !codeForm.MatchString(a.Code):
		return delivery.Result{}, errors.New("code is not of the form [a-z0-9_]")
	case a.RetryAfter < 0:
		return delivery.Result{}, errors.New("retry_after is negative")
	}
	code := "server_plugin"
	if a.Permanent {
		code = "refused_plugin"
	}
	if a.Code != "" && hidden.text(a.Code) == a.Code {
		code += "_" + a.Code
	}
	return delivery.Result{
		Code: code, Permanent: a.Permanent, Detail: clean(hidden.text(a.Detail)),
		RetryAfter: time.Duration(min(a.RetryAfter, int64(maxRetryAfter/time.Second))) * time.Second,
	}, nil
}

// clean makes one short line of what a plugin says.
func clean(s string) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s)
	for len(s) > maxDetail {
		_, size := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-size]
	}
	return s
}

// private takes the secrets that a plugin was handed out of what it says: in every
// form that a scrubber knows, and those that are too short for one as they are.
type private struct {
	secret.Scrubber
	short []string
}

// minShort is the shortest text that is taken out; shorter ones would tear every word.
const minShort = 4

func privateOf(secrets map[string]string) *private {
	p := new(private)
	for _, v := range secrets {
		p.Add(v)
		if len(v) >= minShort && len(v) < secret.MinLength {
			p.short = append(p.short, v, secret.Redacted)
		}
	}
	return p
}

func (p *private) text(s string) string {
	return strings.NewReplacer(p.short...).Replace(p.Text(s))
}

func (p *private) excerpt(b []byte) []byte {
	return []byte(canonjson.CutRunes(strings.NewReplacer(p.short...).Replace(string(p.Excerpt(b, maxErrors))), maxErrors))
}

// output keeps the first bytes of what is written and calls over when there are more.
type output struct {
	limit  int
	over   func()
	bytes  []byte
	passed bool
}

func (o *output) Write(p []byte) (int, error) {
	o.bytes = append(o.bytes, p[:min(len(p), o.limit-len(o.bytes))]...)
	if len(o.bytes) == o.limit && !o.passed {
		o.passed = true
		if o.over != nil {
			o.over()
		}
	}
	return len(p), nil
}
