// Package models is the one table of what models can do, by provider and
// family. It is a guide, and a configuration may say otherwise: a server may
// hold a model to less than it was made for.
package models

import (
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/llm"
)

// Family is one row of the table.
type Family struct {
	// Vendor is who makes the models.
	Vendor string
	// Names are the beginnings of the names of its models, in lower case. What
	// follows a beginning must not be a letter or a digit: "o1" is not "o11".
	Names []string
	// At says at which provider the vendor's own API is reached; "" for models
	// that are met behind openai_compatible servers only.
	At string
	// Caps is what the models can do there.
	Caps llm.Capabilities
}

// Lookup gives what a model can do when it is reached over a provider
// ("openai", "anthropic", "gemini", "openai_compatible"). The row whose name is
// the longest beginning of the model's name counts; a path before the name
// ("meta-llama/", "models/") does not. At another provider than the vendor's
// own, PDF files and native structured output are not counted on: they are the
// server's and not the model's. Of a model that is not in the table only tools
// are expected, since without them it could not act. A cache of prompts that is
// told what to keep is the server's: OpenAI and Anthropic have one for all models.
func Lookup(provider, model string) llm.Capabilities {
	cache := keepsPrompts(provider)
	f, ok := find(model)
	if !ok {
		return llm.Capabilities{Tools: true, Structured: llm.StructuredNone, PromptCache: cache}
	}
	caps := f.Caps
	caps.PromptCache = cache
	if f.At != provider {
		caps.PDF, caps.Structured = false, llm.StructuredNone
	}
	return caps
}

func keepsPrompts(provider string) bool { return provider == "openai" || provider == "anthropic" }

// Known says whether a model is in the table.
func Known(model string) bool {
	_, ok := find(model)
	return ok
}

func find(model string) (Family, bool) {
	name := strings.ToLower(strings.TrimSpace(model))
	name = name[strings.LastIndexByte(name, '/')+1:]
	for _, prefix := range []string{"ft:", "us.", "eu.", "anthropic.", "meta-"} {
		name = strings.TrimPrefix(name, prefix)
	}
	best, length := Family{}, 0
	for _, f := range table() {
		for _, begin := range f.Names {
			if len(begin) > length && begins(name, begin) {
				best, length = f, len(begin)
			}
		}
	}
	return best, length > 0
}

// begins says that name begins with the words of begin.
func begins(name, begin string) bool {
	rest, ok := strings.CutPrefix(name, begin)
	if !ok || rest == "" {
		return ok
	}
	c := rest[0]
	return c == '.' || c == '-' || c == '_' || c == ':' || c == '@' || c == ' '
}

// Families gives the table, by vendor and name.
func Families() []Family {
	list := table()
	slices.SortStableFunc(list, func(a, b Family) int { return strings.Compare(a.Vendor, b.Vendor) })
	return list
}
