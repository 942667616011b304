package storecore

import (
	"github.com/holdfast-dev/holdfast/internal/event"
)

// Reference is a blob that an event refers to. The blob's owner is the session
// of the envelope.
type Reference struct {
	Ref  string
	Kind event.BlobKind // that the blob must have
}

// References lists the blobs that an event refers to: this is the one table of
// the members of events that do, each with the kind that it allows. Members
// that callers or tools fill as they like (arguments, metadata) refer to nothing.
func References(data event.Data) []Reference {
	var list []Reference
	add := func(kind event.BlobKind, refs ...string) {
		for _, ref := range refs {
			if ref != "" {
				list = append(list, Reference{ref, kind})
			}
		}
	}
	text := func(c event.Content) { add(event.BlobContent, c.Ref) }
	switch d := data.(type) {
	case *event.SessionCreated:
		text(d.Settings.Instructions)
	case *event.SessionUpdated:
		text(d.Settings.Instructions)
	case *event.RunCreated:
		for _, item := range d.Input {
			text(item.Content)
		}
		add(event.BlobToolset, d.Toolset)
		if d.Idempotency != nil {
			add(event.BlobContract, d.Idempotency.Contract)
		}
	case *event.CompactionEnded:
		text(d.Summary)
	case *event.AttentionResolved:
		text(d.Output)
	case *event.OutputEmitted:
		text(d.Content)
	case *event.TextEnded:
		text(d.Content)
		add(event.BlobSealed, d.State)
	case *event.ReasoningEnded:
		add(event.BlobSealed, d.State)
	case *event.ToolInputEnded:
		text(d.Content)
	case *event.ToolRequested:
		text(d.Large)
		text(d.Raw)
		add(event.BlobSealed, d.State)
	case *event.ToolCompleted:
		text(d.Output)
		add(event.BlobSealed, d.State)
		add(event.BlobContent, d.OutputPaths...)
	case *event.ToolFailed:
		text(d.Message)
		add(event.BlobSealed, d.State)
	case *event.DeliveryEnqueued:
		add(event.BlobDelivery, d.Body, d.Address)
	case *event.DeliveryAttemptFailed:
		add(event.BlobDelivery, d.Excerpt)
	}
	return list
}
