package console

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"syscall"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/config"
	"github.com/holdfast-dev/holdfast/internal/problem"
)

// ExitError ends a command with an exit code.
type ExitError struct {
	Code    int
	Problem string // the code that --json shows; empty: the output has told already
	Msg     string
}

func (e *ExitError) Error() string { return e.Msg }

// Exit is an ExitError.
func Exit(code int, problem, msg string) error { return &ExitError{code, problem, msg} }

// UsageError is a mistake in how a command was called.
type UsageError struct{ error }

func (e UsageError) Unwrap() error { return e.error }

// Usage says that the command was called wrongly.
func Usage(err error) error { return UsageError{err} }

// hintError adds a way out to an error.
type hintError struct {
	error
	hint string
}

func (e *hintError) Unwrap() error { return e.error }

// Hint adds a way out to an error.
func Hint(err error, hint string) error { return &hintError{err, hint} }

// Exit shows an error and gives the exit code that it means.
func (a *App) Exit(err error) int {
	if err == nil {
		return ExitOK
	}
	p, code, lines := a.explain(err)
	for _, l := range lines {
		a.Complain(l)
	}
	if a.JSON && p != nil {
		show := a.Print
		if a.Lines {
			show = a.Line
		}
		if show(p) != nil {
			return ExitFailed
		}
	}
	return code
}

// explain gives an error as a problem document, as an exit code, and as lines
// for a person. No document: the output has told already.
func (a *App) explain(err error) (p *api.Problem, exit int, lines []string) {
	local := func(code, detail string) *api.Problem {
		return &api.Problem{Type: "about:blank", Title: "Local error", Code: code, Detail: detail}
	}
	var ee *ExitError
	var ue UsageError
	var mistakes ConfigError
	var pe *problem.Error
	var ce *client.Error
	switch {
	case errors.As(err, &ee):
		if ee.Msg != "" {
			lines = append(lines, ee.Msg)
		}
		if ee.Problem != "" {
			p = local(ee.Problem, ee.Msg)
		}
		return p, ee.Code, lines
	case errors.As(err, &ue):
		return local("usage", err.Error()), ExitUsage, []string{err.Error()}
	case errors.As(err, &mistakes):
		p = local("configuration_invalid", "")
		for _, m := range mistakes {
			lines = append(lines, m.Error())
			at := m.File
			if m.Line > 0 {
				at += ":" + strconv.Itoa(m.Line) + ":" + strconv.Itoa(m.Column)
			}
			p.Issues = append(p.Issues, api.Issue{Path: at, Text: m.Text})
		}
		p.Detail = lines[0]
		return p, ExitUsage, lines
	case errors.As(err, &pe):
		p, lines = local(pe.Code, pe.Detail), append(lines, pe.Detail)
		for _, is := range pe.Issues {
			p.Issues = append(p.Issues, api.Issue{Path: is.Path, Text: is.Text})
			lines = append(lines, "  "+is.Path+": "+is.Text)
		}
		return p, pe.Kind.ExitCode(), lines
	case errors.As(err, &ce):
		p, lines = a.answered(ce)
		var hint *hintError
		if errors.As(err, &hint) {
			lines = append(lines, "  "+hint.hint)
		}
		return p, codeOf(err), lines
	case errors.Is(err, client.ErrUnreachable):
		p = local("unreachable", err.Error())
		if lines = []string{err.Error()}; errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, os.ErrNotExist) {
			lines = append(lines, "  nobody listens there: start the daemon with holdfast serve, or name the one that is meant with --server")
		}
		var dns *net.DNSError
		var stranger x509.UnknownAuthorityError
		if errors.As(err, &dns) && dns.IsNotFound {
			lines = append(lines, "  this machine does not know the name: where the daemon is its own, 127.0.0.1 may have it in /etc/hosts")
		}
		if errors.As(err, &stranger) {
			lines = append(lines, "  its certificate is of an authority that this machine does not trust: SSL_CERT_FILE=roots.pem names one that it shall")
		}
		return p, codeOf(err), lines
	case errors.Is(err, context.Canceled):
		return local("interrupted", "interrupted"), ExitFailed, []string{"interrupted"}
	default:
		p = local("failed", err.Error())
	}
	return p, codeOf(err), []string{err.Error()}
}

// answered explains an answer of the daemon that is no success.
func (a *App) answered(ce *client.Error) (*api.Problem, []string) {
	p := ce.Problem
	if p.Code == "" {
		p = api.Problem{Type: "about:blank", Title: http.StatusText(ce.Status), Status: ce.Status, Code: "http_" + strconv.Itoa(ce.Status), Detail: ce.Error()}
	}
	lines := []string{ce.Error()}
	for _, is := range ce.Problem.Issues {
		if is.Path != "" && len(ce.Problem.Issues) > 1 {
			lines = append(lines, "  "+is.Path+": "+is.Text)
		}
	}
	if ce.Status == http.StatusUnauthorized {
		lines = append(lines, "  give a token with --token or HOLDFAST_TOKEN; "+a.looked)
	}
	return &p, lines
}

// codeOf gives the exit code of an error of the client.
func codeOf(err error) int {
	var ce *client.Error
	switch {
	case errors.Is(err, client.ErrUnreachable):
		return ExitUnreachable
	case errors.As(err, &ce):
		return problem.KindOfStatus(ce.Status).ExitCode()
	}
	return ExitFailed
}

// ConfigError is what is wrong with a configuration.
type ConfigError []*config.Error

func (e ConfigError) Error() string { return e[0].Error() }

// Mistakes gives the mistakes of a configuration in err, or err itself.
func Mistakes(err error) error {
	list, ok := err.(interface{ Unwrap() []error })
	if !ok {
		var one *config.Error
		if errors.As(err, &one) {
			return ConfigError{one}
		}
		return err
	}
	var out ConfigError
	for _, e := range list.Unwrap() {
		var one *config.Error
		if !errors.As(e, &one) {
			return err
		}
		out = append(out, one)
	}
	slices.SortStableFunc(out, func(a, b *config.Error) int { return cmp.Or(a.Line-b.Line, a.Column-b.Column) })
	return out
}
