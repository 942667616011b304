// Package demo tells the whole story with real processes: a daemon of this
// binary, a scripted model, a receiver on this machine, and a kill in the
// middle. It succeeds only if all of it really happened.
package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/api"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/webhook"
)

// Options say how the story is told.
type Options struct {
	Out   io.Writer
	Keep  bool // leave the daemon running
	Color bool
}

// limit bounds the whole demo.
const limit = 2 * time.Minute

// teller is one telling.
type teller struct {
	Options
	dir      string
	daemon   *process
	receiver *receiver
	client   *client.Client
	session  string
	run      string
	began    time.Time
}

// Run tells the story.
func Run(ctx context.Context, opt Options) (err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	t := &teller{Options: opt, began: time.Now()}
	if t.dir, err = os.MkdirTemp("", "holdfast-demo-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.end(err == nil)) }()
	if t.receiver, err = newReceiver(); err != nil {
		return err
	}
	defer t.receiver.server.Close()
	for _, chapter := range []func(context.Context) error{t.start, t.bounce, t.accept, t.crash, t.answer, t.deliver, t.showLog} {
		if err := chapter(ctx); err != nil {
			return err
		}
	}
	t.say("")
	t.title("All of this happened, in %s.", time.Since(t.began).Round(100*time.Millisecond))
	t.say("Put a real model in: these three lines of holdfast.yaml.")
	t.block(realModel)
	return nil
}

// end cleans up, or says where everything is.
func (t *teller) end(ok bool) error {
	if t.daemon == nil {
		return os.RemoveAll(t.dir)
	}
	if t.Keep && ok {
		t.say("The daemon goes on: %s, process %d, directory %s", t.daemon.address, t.daemon.cmd.Process.Pid, t.dir)
		t.say("  cd %s && holdfast runs list", t.dir)
		t.say("  its admin token is in %s", filepath.Join(t.dir, "holdfast-data", "admin.token"))
		t.say("  end it with: kill %d", t.daemon.cmd.Process.Pid)
		return nil
	}
	t.daemon.stop()
	return os.RemoveAll(t.dir)
}

// start writes the configuration and starts the daemon.
func (t *teller) start(ctx context.Context) error {
	t.title("A daemon, a scripted model, a receiver on this machine")
	for name, text := range map[string]string{
		"holdfast.yaml": configuration, "demo.script.yaml": script, filepath.Join("work", "runbook.md"): runbook,
	} {
		path := filepath.Join(t.dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return err
		}
	}
	if err := t.spawn(ctx); err != nil {
		return err
	}
	secret, err := os.ReadFile(filepath.Join(t.dir, "holdfast-data", "webhook.secret"))
	if err != nil {
		return err
	}
	key, err := webhook.ParseSecret(strings.TrimSpace(string(secret)))
	if err != nil {
		return err
	}
	t.receiver.verifyWith(key)
	s, err := t.client.CreateSession(ctx, &api.CreateSession{
		ID: "triage", Instructions: "Sort the alert by the runbook.",
		InputContract:  &api.InputContract{Schema: api.Raw(inputSchema)},
		OutputContract: &api.OutputContract{Schema: api.Raw(outputSchema)},
		ReplyTargets:   []api.ReplyTarget{{Type: "webhook", URL: t.receiver.url}},
	})
	if err != nil {
		return err
	}
	t.session = s.ID
	t.say("process %d listens on %s", t.daemon.cmd.Process.Pid, t.daemon.address)
	t.say("session %s, alias triage: JSON in, JSON out, answers to %s", s.ID, t.receiver.url)
	return nil
}

// spawn starts a life of the daemon, and the client that speaks to it.
func (t *teller) spawn(ctx context.Context) error {
	var err error
	if t.daemon, err = spawn(ctx, t.dir); err != nil {
		return err
	}
	token, err := os.ReadFile(filepath.Join(t.dir, "holdfast-data", "admin.token"))
	if err != nil {
		return err
	}
	t.client, err = client.New(t.daemon.address, strings.TrimSpace(string(token)))
	return err
}

// bounce submits what breaks the input contract.
func (t *teller) bounce(ctx context.Context) error {
	t.title("A malformed submission bounces, and leaves nothing behind")
	const bad = `{"host":"db-7","mesage":"disk full"}`
	t.say("→ %s", bad)
	_, _, err := t.client.Submit(ctx, t.session, &api.SubmitRun{Content: api.Raw(bad)})
	var ce *client.Error
	if !errors.As(err, &ce) || ce.Problem.Code != "input_contract_violated" {
		return fmt.Errorf("the malformed submission was not refused: %w", err)
	}
	t.say("← %d %s: %s", ce.Status, ce.Problem.Code, ce.Problem.Detail)
	runs, err := t.client.Runs(ctx, client.RunsQuery{SessionID: t.session}, client.Page{})
	if err != nil {
		return err
	}
	if len(runs.Items) != 0 {
		return errors.New("the malformed submission left a run")
	}
	return nil
}

// accept submits good work.
func (t *teller) accept(ctx context.Context) error {
	t.title("A good one is accepted, and has its run id at once")
	const good = `{"host": "db-7", "message": "disk full on /var/lib/postgresql"}`
	t.say("→ %s", good)
	run, created, err := t.client.Submit(ctx, t.session, &api.SubmitRun{Content: api.Raw(good)}, client.IdempotencyKey("alert-4711"))
	if err != nil {
		return err
	}
	if !created {
		return errors.New("a new key gave an old run")
	}
	t.run = run.ID
	t.say("← 202 %s", run.ID)
	return nil
}

// errSeen ends a stream that has shown what was waited for.
var errSeen = errors.New("seen")

// crash follows the run until it repairs its answer, and kills the daemon
// while the model speaks.
func (t *teller) crash(ctx context.Context) error {
	t.title("It works: a tool, a wrong answer, a repair")
	var tool, wrong, repair bool
	err := t.client.StreamRun(ctx, t.run, 0, func(m client.Message) error {
		if m.Event == nil {
			return nil
		}
		d := data(m.Event)
		switch m.Event.Type {
		case "tool.call.requested":
			t.say("turn %d: the model calls %s %s", m.Event.Turn, d["name"], compact(d["arguments"]))
		case "tool.call.completed":
			tool = true
			t.say("turn %d: the tool answers", m.Event.Turn)
		case "text.ended":
			t.say("turn %d: the model answers %s", m.Event.Turn, text(d["content"]))
		case "contract.checked":
			wrong = wrong || d["ok"] == false
			t.say("        the answer breaks the contract: %s", d["error"])
		case "contract.repair.requested":
			repair = true
			t.say("        repair %v of at most %v, tools withheld", d["attempt"], d["budget"])
		case "model.call.started":
			if repair {
				return errSeen
			}
		}
		return nil
	})
	if !errors.Is(err, errSeen) || !tool || !wrong {
		return fmt.Errorf("the run did not go as told (tool %v, wrong answer %v, repair %v): %w", tool, wrong, repair, err)
	}
	t.title("kill -9, in the middle of the model's answer")
	t.daemon.kill()
	t.say("process %d is gone (%s)", t.daemon.cmd.Process.Pid, t.daemon.cmd.ProcessState)
	if err := t.spawn(ctx); err != nil {
		return err
	}
	t.say("process %d took over, on the same directory", t.daemon.cmd.Process.Pid)
	// The client's retry of its submission finds the run that exists.
	run, created, err := t.client.Submit(ctx, t.session,
		&api.SubmitRun{Content: api.Raw(`{"message":"disk full on /var/lib/postgresql","host":"db-7"}`)}, client.IdempotencyKey("alert-4711"))
	if err != nil {
		return err
	}
	if created || run.ID != t.run {
		return errors.New("the retried submission made a second run")
	}
	t.say("the client repeats its submission under the same key: 200, the same run")
	return nil
}

// answer waits for the run and checks what came of it.
func (t *teller) answer(ctx context.Context) error {
	t.title("The run goes on where it was")
	run, err := t.client.Wait(ctx, t.run)
	if err != nil {
		return err
	}
	if run.Status != api.RunCompleted || len(run.Outputs) != 1 || run.Outputs[0].Content != wanted {
		return fmt.Errorf("the run is %s with %d outputs: %+v", run.Status, len(run.Outputs), run.Error)
	}
	if run.Counters == nil || run.Counters.Repairs != 1 || run.Counters.Tools != 1 {
		return fmt.Errorf("the run's counters are %+v", run.Counters)
	}
	t.say("%s: %s, %s, %s; the attempt that was cut is closed and counted, and its text is nowhere",
		run.Status, count(run.Counters.Turns, "turn"), count(run.Counters.Tools, "tool call"), count(run.Counters.Repairs, "repair"))
	return nil
}

func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// deliver waits for the webhook.
func (t *teller) deliver(ctx context.Context) error {
	t.title("The answer arrives, once, signed")
	var got received
	select {
	case got = <-t.receiver.came:
	case <-ctx.Done():
		return fmt.Errorf("no delivery came: %w", ctx.Err())
	}
	if got.verified != nil {
		return fmt.Errorf("the signature: %w", got.verified)
	}
	var body struct {
		Content string `json:"content"`
		RunID   string `json:"run_id"`
	}
	if err := json.Unmarshal(got.body, &body); err != nil {
		return err
	}
	if body.Content != wanted || body.RunID != t.run {
		return fmt.Errorf("the delivery holds %s", got.body)
	}
	if err := t.settled(ctx, got.id); err != nil {
		return err
	}
	if n := len(t.receiver.requests()); n != 1 {
		return fmt.Errorf("the receiver was called %d times", n)
	}
	t.say("webhook-id %s, signature verified over the raw bytes", got.id)
	t.say("%s", body.Content)
	return nil
}

// settled waits until the delivery is recorded as delivered.
func (t *teller) settled(ctx context.Context, id string) error {
	err := t.client.StreamSession(ctx, t.session, 0, func(m client.Message) error {
		if m.Synced != nil {
			return errSeen
		}
		return nil
	})
	if !errors.Is(err, errSeen) {
		return err
	}
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		d, err := t.client.Delivery(ctx, id)
		if err != nil {
			return err
		}
		if d.Status == api.DeliveryDelivered {
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("the delivery is %s", d.Status)
		}
	}
}

// showLog prints the record of the run.
func (t *teller) showLog(ctx context.Context) error {
	t.title("The record: every event of the run")
	events, err := t.client.RunEvents(ctx, t.run, client.EventsQuery{}, 0, 500)
	if err != nil {
		return err
	}
	abandoned, terminal := 0, 0
	for i := range events.Items {
		e := &events.Items[i]
		d := data(e)
		if e.Type == "model.call.failed" && d["class"] == "abandoned" {
			abandoned++
		}
		if e.Type == "run.completed" {
			terminal++
		}
		t.say("%4d  epoch %d  %-25s %s", e.Seq, e.Epoch, e.Type, gist(e, d))
	}
	if abandoned != 1 || terminal != 1 {
		return fmt.Errorf("the log holds %d abandoned attempts and %d ends", abandoned, terminal)
	}
	return nil
}
