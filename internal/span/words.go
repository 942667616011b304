package span

import "github.com/holdfast-dev/holdfast/internal/event"

func str(key, value string) Attr       { return Attr{key, value} }
func num(key string, value int64) Attr { return Attr{key, value} }

// usage is what is known of tokens. Input includes what was cached, output
// includes reasoning, as the conventions want it.
func usage(u *event.TokenUsage) []Attr {
	if u == nil {
		return nil
	}
	attrs := []Attr{num("gen_ai.usage.input_tokens", u.Input), num("gen_ai.usage.output_tokens", u.Output)}
	for _, a := range []Attr{
		num("gen_ai.usage.cache_read.input_tokens", u.CacheRead), num("gen_ai.usage.cache_creation.input_tokens", u.CacheWrite),
		num("gen_ai.usage.reasoning.output_tokens", u.Reasoning),
	} {
		if a.Value != int64(0) {
			attrs = append(attrs, a)
		}
	}
	return attrs
}

// provider is the conventions' name of a provider, where they have one.
func provider(name string) string {
	switch name {
	case "openai_compatible":
		return "openai" // the format that is spoken, as the conventions ask for
	case "gemini":
		return "gcp.gemini"
	}
	return name
}

// word lets through what looks like a word of a closed set: lower case, digits
// and underscores, 48 bytes at most. Whatever else an event holds is no word.
func word(s string) string {
	if s == "" || len(s) > 48 {
		return "other"
	}
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' {
			return "other"
		}
	}
	return s
}
