package llm

// Structured says how a model is held to a schema natively. Whatever it is,
// the local check of the answer stays the judge.
type Structured string

// The modes of structured output.
const (
	// StructuredNone: the schema stands in the prompt only.
	StructuredNone Structured = "none"
	// StructuredObject: the model answers with some JSON object.
	StructuredObject Structured = "json_object"
	// StructuredSchema: the model takes the schema, in its vendor's form.
	StructuredSchema Structured = "json_schema"
)

// Capabilities is what a model can do. The zero value means: not known, and
// nothing special is asked of the model.
type Capabilities struct {
	Context    int64 // tokens of prompt and answer together; 0: not known
	Output     int64 // the most tokens of one answer; 0: not known
	Tools      bool
	Images     bool
	PDF        bool
	Reasoning  bool // takes a reasoning effort or budget
	Structured Structured
	// PromptCache: its server takes the dialect's words about its cache of
	// prompts (marks on the stable beginning, or a key).
	PromptCache bool
}

// Takes says whether a model with these capabilities reads a file of this media type.
func (c Capabilities) Takes(mediaType string) bool {
	switch mediaType {
	case "image/png", "image/jpeg", "image/gif", "image/webp":
		return c.Images
	case "application/pdf":
		return c.PDF
	case "text/plain", "text/markdown", "text/csv", "application/json":
		return true // shown as text
	}
	return false
}
