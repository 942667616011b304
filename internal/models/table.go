package models

import "github.com/holdfast-dev/holdfast/internal/llm"

const (
	k   = 1024
	mib = 1 << 20
)

// Abilities beyond text and tools.
const (
	text   = 0
	images = 1 << iota
	pdf
	reasoning
	noTools
	schema // json_schema at the vendor's own API
	object // json_object there
)

// row makes a family: tokens of context, tokens of one answer, abilities.
func row(vendor, at string, context, output int64, can int, names ...string) Family {
	caps := llm.Capabilities{
		Context: context, Output: output, Tools: can&noTools == 0, Images: can&images != 0, PDF: can&pdf != 0,
		Reasoning: can&reasoning != 0, Structured: llm.StructuredNone, PromptCache: keepsPrompts(at),
	}
	switch {
	case can&schema != 0:
		caps.Structured = llm.StructuredSchema
	case can&object != 0:
		caps.Structured = llm.StructuredObject
	}
	return Family{Vendor: vendor, Names: names, At: at, Caps: caps}
}

// table is written from the vendors' public model pages. Numbers are those of
// the model, in tokens; 0 where the vendor names none.
func table() []Family {
	const full = images | pdf | reasoning | schema
	return []Family{
		row("OpenAI", "openai", 1_050_000, 128_000, full, "gpt-5.4", "gpt-5.5", "gpt-5.6"),
		row("OpenAI", "openai", 400_000, 128_000, full, "gpt-5", "gpt-5.1", "gpt-5.2", "gpt-5.3", "gpt-5.4-mini", "gpt-5.4-nano", "gpt-5.6-luna"),
		row("OpenAI", "openai", 128_000, 16_384, images|schema, "gpt-5-chat", "gpt-5.1-chat", "gpt-5.2-chat"),
		row("OpenAI", "openai", 1_047_576, 32_768, images|pdf|schema, "gpt-4.1"),
		row("OpenAI", "openai", 128_000, 16_384, images|pdf|schema, "gpt-4o", "chatgpt-4o"),
		row("OpenAI", "openai", 128_000, 4_096, images|object, "gpt-4-turbo"),
		row("OpenAI", "openai", 8_192, 8_192, text, "gpt-4"),
		row("OpenAI", "openai", 16_385, 4_096, object, "gpt-3.5-turbo"),
		row("OpenAI", "openai", 200_000, 100_000, full, "o1", "o3", "o4-mini", "codex-mini"),
		row("OpenAI", "openai", 200_000, 100_000, reasoning|schema, "o3-mini"),
		row("OpenAI", "openai", 128_000, 65_536, noTools, "o1-mini", "o1-preview"),
		row("OpenAI", "", 131_072, 131_072, reasoning, "gpt-oss"),

		row("Anthropic", "anthropic", 1_000_000, 128_000, full, "claude-fable", "claude-opus-5", "claude-sonnet-5", "claude-haiku-5",
			"claude-opus-4-6", "claude-opus-4-7", "claude-opus-4-8", "claude-sonnet-4-6", "claude-opus-4.6", "claude-opus-4.7", "claude-opus-4.8", "claude-sonnet-4.6"),
		row("Anthropic", "anthropic", 200_000, 64_000, full, "claude-opus-4-5", "claude-sonnet-4-5", "claude-haiku-4-5",
			"claude-opus-4.5", "claude-sonnet-4.5", "claude-haiku-4.5"),
		row("Anthropic", "anthropic", 200_000, 32_000, full, "claude-opus-4-1", "claude-opus-4.1"),
		row("Anthropic", "anthropic", 200_000, 32_000, images|pdf|reasoning, "claude-opus-4"),
		row("Anthropic", "anthropic", 200_000, 64_000, images|pdf|reasoning, "claude-sonnet-4", "claude-3-7-sonnet", "claude-3.7-sonnet"),
		row("Anthropic", "anthropic", 200_000, 8_192, images|pdf, "claude-3-5-sonnet", "claude-3-5-haiku", "claude-3.5-sonnet", "claude-3.5-haiku"),
		row("Anthropic", "anthropic", 200_000, 4_096, images, "claude-3"),

		row("Google", "gemini", mib, 65_536, full, "gemini-3", "gemini-3.1", "gemini-3.5", "gemini-3.6", "gemini-3.8", "gemini-2.5-pro", "gemini-2.5-flash",
			"gemini-pro-latest", "gemini-flash-latest", "gemini-flash-lite-latest"),
		row("Google", "gemini", 65_536, 32_768, images|noTools, "gemini-2.5-flash-image", "gemini-3-pro-image"),
		row("Google", "gemini", mib, 8_192, images|pdf|schema, "gemini-2.0-flash", "gemini-1.5-flash"),
		row("Google", "gemini", 2*mib, 8_192, images|pdf|schema, "gemini-1.5-pro"),
		row("Google", "", 256*k, 0, images, "gemma-4", "gemma4"),
		row("Google", "", 128*k, 8_192, images|noTools, "gemma-3", "gemma3"),
		row("Google", "", 32*k, 0, noTools, "gemma-3n", "gemma3n", "gemma-3-1b", "gemma3:1b"),
		row("Google", "", 8*k, 0, noTools, "gemma", "gemma2", "gemma-2"),

		row("Meta", "", 128*k, 0, text, "llama-3.1", "llama3.1", "llama-3.2", "llama3.2", "llama-3.3", "llama3.3"),
		row("Meta", "", 128*k, 0, images, "llama-3.2-11b", "llama-3.2-90b", "llama3.2-vision", "llama-3.2-vision"),
		row("Meta", "", mib, 0, images, "llama-4", "llama4"),
		row("Meta", "", 8*k, 0, noTools, "llama-3", "llama3"),

		row("Alibaba", "", 32*k, 0, text, "qwen2.5", "qwen-2.5", "qwen2"),
		row("Alibaba", "", 128_000, 0, images, "qwen2.5-vl", "qwen2.5vl", "qwen-2.5-vl"),
		row("Alibaba", "", 40*k, 0, text, "qwen3"),
		row("Alibaba", "", 256*k, 0, text, "qwen3-coder", "qwen3-next", "qwen3-235b-a22b-instruct-2507", "qwen3-235b-a22b-thinking-2507",
			"qwen3-30b-a3b-instruct-2507", "qwen3-30b-a3b-thinking-2507", "qwen3-4b-instruct-2507", "qwen3-4b-thinking-2507", "qwen3-max"),
		row("Alibaba", "", 256*k, 0, images, "qwen3-vl", "qwen3.5", "qwen3.6"),
		row("Alibaba", "", 128*k, 0, text, "qwq"),

		row("Mistral", "", 128*k, 0, text, "mistral-large", "mistral-nemo", "ministral", "mistral-small", "magistral"),
		row("Mistral", "", 128*k, 0, images, "mistral-medium", "mistral-small-3.1", "mistral-small-3.2", "mistral-small3.1", "mistral-small3.2", "pixtral"),
		row("Mistral", "", 256*k, 0, text, "codestral", "devstral"),
		row("Mistral", "", 256*k, 0, images, "mistral-large-3", "ministral-3", "mistral-large-2512"),
		row("Mistral", "", 64*k, 0, text, "mixtral-8x22b"),
		row("Mistral", "", 32*k, 0, text, "mixtral", "mistral"),

		row("DeepSeek", "", 1_000_000, 384_000, reasoning, "deepseek-v4", "deepseek-flash", "deepseek-v4.1"),
		row("DeepSeek", "", 128*k, 64*k, text, "deepseek-reasoner", "deepseek-r1-0528"),
		row("DeepSeek", "", 128*k, 8*k, text, "deepseek-chat", "deepseek-v3", "deepseek-v3.1", "deepseek-v3.2"),
		row("DeepSeek", "", 128*k, 32*k, noTools, "deepseek-r1", "deepseek-r1-distill"),

		row("Microsoft", "", 16*k, 0, noTools, "phi-4", "phi4"),
		row("Microsoft", "", 128*k, 0, text, "phi-4-mini", "phi4-mini"),
		row("Microsoft", "", 128*k, 0, images, "phi-4-multimodal"),
		row("Microsoft", "", 32*k, 0, noTools, "phi-4-reasoning", "phi4-reasoning"),
		row("Microsoft", "", 4*k, 0, noTools, "phi-3", "phi3"),

		row("Moonshot", "", 128*k, 0, text, "kimi-k2"),
		row("Moonshot", "", 256*k, 0, text, "kimi-k2-0905", "kimi-k2-thinking", "kimi-k2-turbo"),
		row("Moonshot", "", 256*k, 0, images, "kimi-k2.5", "kimi-k2.6", "kimi-k2-5", "kimi-latest"),
		row("Moonshot", "", 8*k, 0, text, "moonshot-v1-8k"),
		row("Moonshot", "", 32*k, 0, text, "moonshot-v1-32k"),
		row("Moonshot", "", 128*k, 0, text, "moonshot-v1-128k"),

		row("Z.ai", "", 128*k, 96*k, text, "glm-4.5"),
		row("Z.ai", "", 64*k, 16*k, images, "glm-4.5v"),
		row("Z.ai", "", 200_000, 128*k, text, "glm-4.6", "glm-4.7", "glm-5", "glm-5.1", "glm-5.2"),
		row("Z.ai", "", 128*k, 32*k, images, "glm-4.6v"),
		row("Z.ai", "", 128*k, 4*k, text, "glm-4"),

		row("MiniMax", "", 192*k, 0, text, "minimax-m2", "minimax-m2.1", "minimax-m2.5", "minimax-m2.7"),
		row("xAI", "", 256_000, 0, images, "grok-4", "grok-4.5"),
		row("xAI", "", 2_000_000, 0, images, "grok-4-fast", "grok-4.1-fast", "grok-4-1-fast"),
		row("xAI", "", 256_000, 0, text, "grok-code-fast"),
		row("xAI", "", 128*k, 0, text, "grok-3"),
		row("xAI", "", 128*k, 0, reasoning, "grok-3-mini"),
		row("Cohere", "", 128_000, 4_096, text, "command-r"),
		row("Cohere", "", 256_000, 8_192, text, "command-a"),
		row("IBM", "", 128*k, 0, text, "granite3.1", "granite3.2", "granite3.3", "granite-3.1", "granite-3.2", "granite-3.3", "granite4", "granite-4"),
		row("NVIDIA", "", 128*k, 0, text, "nemotron", "llama-3.1-nemotron", "llama-3.3-nemotron"),
		row("LLaVA", "", 4*k, 0, images|noTools, "llava"),
	}
}
