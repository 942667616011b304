package models

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/llm"
	"pgregory.net/rapid"
)

var rewrite = flag.Bool("rewrite", false, "write docs/reference/models-table.md anew")

func TestLookup(t *testing.T) {
	for _, c := range []struct {
		provider, model string
		context, output int64
		can             string
	}{
		{"openai", "gpt-5.2", 400_000, 128_000, "tools images pdf reasoning json_schema"},
		{"openai", "gpt-5.5-2026-04-23", 1_050_000, 128_000, "tools images pdf reasoning json_schema"},
		{"openai", "gpt-5.4-mini", 400_000, 128_000, "tools images pdf reasoning json_schema"},
		{"openai", "gpt-4o-2024-08-06", 128_000, 16_384, "tools images pdf json_schema"},
		{"openai", "ft:gpt-4o-mini-2024-07-18:acme::x", 128_000, 16_384, "tools images pdf json_schema"},
		{"openai", "gpt-4-0613", 8_192, 8_192, "tools none"},
		{"openai", "gpt-4.5", 8_192, 8_192, "tools none"}, // the family's nearest known
		{"openai", "o3-mini", 200_000, 100_000, "tools reasoning json_schema"},
		{"openai", "o3", 200_000, 100_000, "tools images pdf reasoning json_schema"},
		{"openai", "o33", 0, 0, "tools none"},
		{"openai_compatible", "openai/gpt-4o", 128_000, 16_384, "tools images none"}, // the server's, not the model's
		{"openai_compatible", "gpt-oss:20b", 131_072, 131_072, "tools reasoning none"},
		{"anthropic", "claude-opus-5-5", 1_000_000, 128_000, "tools images pdf reasoning json_schema"},
		{"anthropic", "claude-sonnet-4-20250514", 200_000, 64_000, "tools images pdf reasoning none"},
		{"anthropic", "claude-sonnet-4-5-20250929", 200_000, 64_000, "tools images pdf reasoning json_schema"},
		{"openai_compatible", "anthropic/claude-sonnet-4.5", 200_000, 64_000, "tools images reasoning none"},
		{"gemini", "models/gemini-2.5-flash", 1 << 20, 65_536, "tools images pdf reasoning json_schema"},
		{"gemini", "gemini-2.5-flash-image-preview", 65_536, 32_768, "images none"},
		{"openai_compatible", "meta-llama/Meta-Llama-3.1-8B-Instruct", 131_072, 0, "tools none"},
		{"openai_compatible", "llama3.2:latest", 131_072, 0, "tools none"},
		{"openai_compatible", "Qwen/Qwen3-VL-8B-Instruct", 262_144, 0, "tools images none"},
		{"openai_compatible", "qwen3:8b", 40_960, 0, "tools none"},
		{"openai_compatible", "mistralai/Mistral-7B-Instruct-v0.3", 32_768, 0, "tools none"},
		{"openai_compatible", "deepseek-ai/DeepSeek-R1", 131_072, 32_768, "none"},
		{"openai_compatible", "deepseek-v4-pro", 1_000_000, 384_000, "tools reasoning none"},
		{"openai_compatible", "google/gemma-3-27b-it", 131_072, 8_192, "images none"},
		{"openai_compatible", "microsoft/phi-4", 16_384, 0, "none"},
		{"openai_compatible", "moonshotai/Kimi-K2-Instruct-0905", 131_072, 0, "tools none"},
		{"openai_compatible", "zai-org/GLM-4.5V", 65_536, 16_384, "tools images none"},
		{"openai_compatible", "something-new", 0, 0, "tools none"},
		{"anthropic", "", 0, 0, "tools none"},
	} {
		got := Lookup(c.provider, c.model)
		if got.Context != c.context || got.Output != c.output || abilities(got) != c.can {
			t.Errorf("%s %s: %d %d %s, want %d %d %s", c.provider, c.model, got.Context, got.Output, abilities(got), c.context, c.output, c.can)
		}
	}
	if Known("something-new") || !Known("QWEN3:8b") {
		t.Error("what is known")
	}
}

// No name stands in two rows, and each row is found by its own names.
func TestTableIsSound(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range table() {
		for _, name := range f.Names {
			if seen[name] || name != strings.ToLower(name) {
				t.Errorf("%s stands twice, or not in lower case", name)
			}
			seen[name] = true
			if got := Lookup(f.At, "vendor/"+strings.ToUpper(name)); got != f.Caps {
				t.Errorf("%s gives %+v", name, got)
			}
		}
		if f.Caps.Output > f.Caps.Context || f.Caps.Context <= 0 {
			t.Errorf("%v: %+v", f.Names, f.Caps)
		}
		if f.At == "" && (f.Caps.PDF || f.Caps.Structured != llm.StructuredNone) {
			t.Errorf("%v: PDF and structured output are the server's", f.Names)
		}
	}
	for provider, want := range map[string]bool{"openai": true, "anthropic": true, "gemini": false, "openai_compatible": false} {
		for _, name := range []string{"gpt-5", "claude-opus-4", "gemini-3-pro", "llama3", "something-new"} {
			if Lookup(provider, name).PromptCache != want {
				t.Errorf("%s at %s: whether prompts are kept is the server's", name, provider)
			}
		}
	}
	rapid.Check(t, func(t *rapid.T) { // any name, any provider
		name := rapid.String().Draw(t, "name")
		if got := Lookup("at "+rapid.String().Draw(t, "provider"), name); !Known(name) && (got != llm.Capabilities{Tools: true, Structured: llm.StructuredNone}) {
			t.Fatalf("%+v", got)
		}
	})
}

func abilities(c llm.Capabilities) string {
	var out []string
	for word, can := range map[string]bool{"1tools": c.Tools, "2images": c.Images, "3pdf": c.PDF, "4reasoning": c.Reasoning} {
		if can {
			out = append(out, word)
		}
	}
	slices.Sort(out)
	for i := range out {
		out[i] = out[i][1:]
	}
	return strings.Join(append(out, string(c.Structured)), " ")
}

// docs/reference/models-table.md is made of the table.
func TestReference(t *testing.T) {
	var b strings.Builder
	b.WriteString("## What models can do\n\nMade of the table in `internal/models`; `go test ./internal/models -run Reference -rewrite` writes this part.\n\n" +
		"The row with the longest beginning of the model's name counts. Tokens are those of the model: a server may hold it to less.\n" +
		"PDF files and structured output count only at the vendor's own provider. A model that is not here is expected to call tools,\n" +
		"to read text only, and to have no structured output.\n\n" +
		"| vendor | names begin with | provider | context | answer | tools | images | PDF | reasoning | structured |\n| --- | --- | --- | --: | --: | --- | --- | --- | --- | --- |\n")
	yes := func(can bool) string {
		if can {
			return "yes"
		}
		return ""
	}
	number := func(n int64) string {
		if n == 0 {
			return ""
		}
		return fmt.Sprint(n)
	}
	for _, f := range Families() {
		at := f.At
		if at == "" {
			at = "openai_compatible"
		}
		structured := string(f.Caps.Structured)
		if f.Caps.Structured == llm.StructuredNone {
			structured = ""
		}
		fmt.Fprintf(&b, "| %s | `%s` | %s | %s | %s | %s | %s | %s | %s | %s |\n", f.Vendor, strings.Join(f.Names, "` `"), at, number(f.Caps.Context), number(f.Caps.Output),
			yes(f.Caps.Tools), yes(f.Caps.Images), yes(f.Caps.PDF), yes(f.Caps.Reasoning), structured)
	}
	path := filepath.Join("..", "..", "docs", "reference", "models-table.md")
	if *rewrite {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != b.String() {
		t.Errorf("%s is stale: go test ./internal/models -run Reference -rewrite", path)
	}
}
