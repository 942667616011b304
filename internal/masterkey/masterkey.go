// Package masterkey finds the keys that secret slots are sealed with: in files
// that only their owner can read, in the environment, or wrapped by a program
// that asks a key management service.
package masterkey

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/seal"
	"github.com/holdfast-dev/holdfast/internal/secret"
)

const (
	// DefaultTimeout bounds one call of the KMS hook.
	DefaultTimeout = 10 * time.Second
	wrappedPrefix  = "hfmkw_"
	maxText        = 64 << 10 // bytes of a file, and of what a hook says
	maxExcerpt     = 200      // bytes of what a hook complains of
)

// Source is where one key stands: exactly one member is set.
type Source struct{ File, Env string }

func (s Source) String() string {
	if s.Env != "" {
		return "the environment variable " + s.Env
	}
	return "the file " + s.File
}

// Hook is a program that wraps and unwraps keys.
type Hook struct {
	Command []string
	PassEnv []string      // names of variables that it is given besides PATH and HOME
	Timeout time.Duration // of one call; 0: DefaultTimeout
}

// Config says where the keys are.
type Config struct {
	Current Source
	Former  []Source
	Hook    *Hook // nil: the sources hold the keys themselves
	// Make makes the file of the current key when there is none.
	Make   bool
	Random io.Reader // for a key that is made
}

// MissingError says that the source of the current key holds none, and none was
// to be made.
type MissingError struct{ Source Source }

func (e *MissingError) Error() string { return "there is no master key in " + e.Source.String() }

// CannotMakeError says that the file could not be made.
type CannotMakeError struct{ cause error }

func (e *CannotMakeError) Error() string {
	return "the master key file cannot be made: " + e.cause.Error()
}

// Unwrap gives the cause.
func (e *CannotMakeError) Unwrap() error { return e.cause }

// Load reads the keys. made says that the file of the current one was made. No
// error holds a key. With Make a file that cannot be made is a
// *CannotMakeError; without, one that is not there a *MissingError.
func Load(ctx context.Context, cfg Config) (ring *seal.Ring, made bool, err error) {
	current, err := cfg.read(ctx, cfg.Current)
	var missing *MissingError
	if errors.As(err, &missing) && cfg.Make && cfg.Current.File != "" {
		current, err = cfg.make(ctx)
		made = err == nil
	}
	if err != nil {
		return nil, false, err
	}
	var former []*seal.Key
	for _, s := range cfg.Former {
		k, err := cfg.read(ctx, s)
		if err != nil {
			return nil, made, err
		}
		former = append(former, k)
	}
	return seal.NewRing(current, former...), made, nil
}

func (c *Config) read(ctx context.Context, s Source) (*seal.Key, error) {
	text, err := s.text()
	if err != nil {
		return nil, err
	}
	if c.Hook != nil {
		wrapped, ok := strings.CutPrefix(text, wrappedPrefix)
		raw, err := base64.RawURLEncoding.DecodeString(wrapped)
		if !ok || err != nil {
			return nil, fmt.Errorf("%s holds no wrapped master key, which begins with %s; with master_key.kms it must", s, wrappedPrefix)
		}
		answer, err := c.Hook.call(ctx, message{Op: "unwrap", Wrapped: string(raw)})
		if err != nil {
			return nil, fmt.Errorf("the master key of %s cannot be unwrapped: %w", s, err)
		}
		text = answer.Key
	} else if strings.HasPrefix(text, wrappedPrefix) {
		return nil, fmt.Errorf("%s holds a wrapped master key: name the program that unwraps it in master_key.kms", s)
	}
	k, err := seal.ParseKey(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s, err)
	}
	return k, nil
}

// text reads a source. A file that others may read is refused: whoever read it
// has the key.
func (s Source) text() (string, error) {
	if s.Env != "" {
		if v := strings.TrimSpace(os.Getenv(s.Env)); v != "" {
			return v, nil
		}
		return "", &MissingError{s}
	}
	f, err := os.Open(s.File)
	if errors.Is(err, fs.ErrNotExist) {
		return "", &MissingError{s}
	}
	if err != nil {
		return "", fmt.Errorf("master key: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", fmt.Errorf("master key: %w", err)
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("master key: %s is no file", s.File)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 && runtime.GOOS != "windows" {
		return "", fmt.Errorf("master key: others than its owner may use %s (mode %04o): chmod 600 %s, and think about whether somebody read it", s.File, mode, s.File)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxText))
	if err != nil {
		return "", fmt.Errorf("master key: %w", err)
	}
	if v := strings.TrimSpace(string(data)); v != "" {
		return v, nil
	}
	return "", fmt.Errorf("master key: the file %s is empty", s.File)
}

// make draws a key and writes its file, the whole of it or none.
func (c *Config) make(ctx context.Context) (*seal.Key, error) {
	k, err := seal.NewKey(c.Random)
	if err != nil {
		return nil, err
	}
	text := k.Text()
	if c.Hook != nil {
		answer, err := c.Hook.call(ctx, message{Op: "wrap", Key: text})
		if err != nil {
			return nil, fmt.Errorf("the new master key cannot be wrapped: %w", err)
		}
		if answer.Wrapped == "" || strings.Contains(answer.Wrapped, strings.TrimPrefix(text, seal.KeyPrefix)) {
			return nil, errors.New("the new master key cannot be wrapped: master_key.kms gives nothing, or the key itself")
		}
		text = wrappedPrefix + base64.RawURLEncoding.EncodeToString([]byte(answer.Wrapped))
	}
	if err := Write(c.Current.File, text); err != nil {
		return nil, &CannotMakeError{err}
	}
	return k, nil
}

// Write writes the text of a key to a new file of mode 0600, durably, the whole
// of it or none. A file that is there already is an error.
func Write(path, text string) error {
	tmp := fmt.Sprintf("%s.%d", path, time.Now().UnixNano())
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer os.Remove(tmp)
	_, err = f.WriteString(text + "\n")
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Link(tmp, path); err != nil { // never over another
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// message is what is said to a hook, and what it says.
type message struct {
	Op      string `json:"op,omitempty"`
	Key     string `json:"key,omitempty"`
	Wrapped string `json:"wrapped,omitempty"`
}

// call runs the hook once. What it is told goes to its input, never to its
// arguments; of this process's environment it has PATH, HOME and what is named.
func (h *Hook) call(ctx context.Context, m message) (message, error) {
	timeout := h.Timeout
	if timeout <= 0 {
		timeout = DefaultTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	input, err := json.Marshal(m)
	if err != nil {
		return message{}, err
	}
	cmd := exec.CommandContext(ctx, h.Command[0], h.Command[1:]...)
	cmd.WaitDelay = time.Second
	cmd.Stdin = bytes.NewReader(append(input, '\n'))
	cmd.Env = []string{}
	for _, name := range append([]string{"PATH", "HOME"}, h.PassEnv...) {
		if v, ok := os.LookupEnv(name); ok {
			cmd.Env = append(cmd.Env, name+"="+v)
		}
	}
	out, complaint := &limited{most: maxText}, &limited{most: maxText}
	cmd.Stdout, cmd.Stderr = out, complaint
	if err := cmd.Run(); err != nil {
		hidden := secret.NewScrubber(m.Key, strings.TrimPrefix(m.Key, seal.KeyPrefix), m.Wrapped)
		var half message // it may have unwrapped the key before it failed
		if json.Unmarshal(out.kept.Bytes(), &half) == nil {
			hidden.Add(half.Key)
			hidden.Add(half.Wrapped)
		}
		said := hidden.Text(strings.Join(strings.Fields(strings.ToValidUTF8(complaint.kept.String(), "")), " "))
		said = keyForm.ReplaceAllString(said, secret.Redacted)
		if len(said) > maxExcerpt {
			said = strings.ToValidUTF8(said[:maxExcerpt], "") + "…"
		}
		if ctx.Err() != nil {
			err = fmt.Errorf("no answer within %s", timeout)
		}
		return message{}, fmt.Errorf("master_key.kms %s: %w: %s", filepath.Base(h.Command[0]), err, said)
	}
	var answer message
	if err := json.Unmarshal(out.kept.Bytes(), &answer); err != nil || out.over {
		return message{}, fmt.Errorf("master_key.kms %s: its output is not one JSON object", filepath.Base(h.Command[0]))
	}
	return answer, nil
}

// keyForm is what may be a key that a hook tells before this process has learnt it.
var keyForm = regexp.MustCompile(`[A-Za-z0-9+/_-]{43,}=*`)

// limited keeps the first bytes that are written to it.
type limited struct {
	kept bytes.Buffer // not embedded: its ReadFrom would know no bound
	most int
	over bool
}

func (l *limited) Write(p []byte) (int, error) {
	if left := l.most - l.kept.Len(); len(p) > left {
		l.over = true
		_, _ = l.kept.Write(p[:left])
		return len(p), nil
	}
	return l.kept.Write(p)
}
