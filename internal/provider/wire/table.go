package wire

import (
	"regexp"
	"slices"

	"github.com/holdfast-dev/holdfast/internal/llm"
)

// rule is one line of the error table. Every field that is set must match.
type rule struct {
	codes    []string       // the vendor's code or type, in lower case
	statuses []int          // the HTTP status, 0 for an error inside a stream without one
	text     *regexp.Regexp // over the vendor's message, in lower case
	class    llm.Class
}

// unsure are the statuses that say too little: what the message says comes first.
var unsure = []int{0, 400, 422, 500}

// table sorts the errors of all vendors. The first rule that matches decides:
// what the vendor calls the error, then the status, then the words of the
// message, and these only where the status is vague, because "tokens", "limit"
// and "quota" stand in messages of several classes.
var table = []rule{
	{class: llm.ContextOverflow, codes: []string{
		"context_length_exceeded", "exceed_context_size_error", "context_window_exceeded",
		"model_context_window_exceeded", "contextwindowexceedederror",
	}},
	{class: llm.Billing, codes: []string{
		"insufficient_quota", "billing_error", "billing_hard_limit_reached", "billing_not_active",
		"insufficient_balance", "insufficient_user_quota", "payment_required", "credits_exhausted",
	}},
	{class: llm.ContentFilter, codes: []string{
		"content_filter", "content_filtered", "content_policy_violation", "data_inspection_failed",
		"responsibleaipolicyviolation", "moderation_blocked",
	}},
	{class: llm.RateLimit, codes: []string{
		"rate_limit_exceeded", "rate_limit_error", "rate_limit_reached", "rate_limit_reached_error",
		"too_many_requests", "resource_exhausted", "throttlingexception",
	}},
	{class: llm.Overloaded, codes: []string{
		"overloaded_error", "overloaded", "engine_overloaded", "engine_overloaded_error", "model_overloaded",
		"server_overloaded", "slow_down", "capacity_exceeded", "service_unavailable", "unavailable",
	}},
	{class: llm.Auth, codes: []string{
		"invalid_api_key", "authentication_error", "permission_error", "permission_denied", "unauthenticated",
		"account_deactivated", "authenticationerror", "invalid_authentication_error",
	}},
	{class: llm.InvalidRequest, codes: []string{
		"model_not_found", "not_found_error", "notfounderror", "invalid_model", "invalid_value",
		"unsupported_parameter", "unsupported_value", "request_too_large", "string_above_max_length",
	}},
	{class: llm.Billing, codes: []string{"credit_balance_exhausted"}},
	{class: llm.ContentFilter, codes: []string{"image_content_policy_violation", "bio_policy"}},
	{class: llm.InvalidRequest, codes: []string{
		"invalid_image", "invalid_image_format", "invalid_base64_image", "invalid_image_url", "invalid_image_mode", "image_too_large",
		"image_too_small", "image_parse_error", "image_file_too_large", "image_file_not_found", "empty_image_file",
		"unsupported_image_media_type", "failed_to_download_image", "data_residency_mismatch", "invalid_encrypted_content",
	}},
	// What is called so may be anything; these statuses are not.
	{class: llm.Billing, statuses: []int{402}},
	{class: llm.Auth, statuses: []int{401, 403, 407}},
	{class: llm.Server, codes: []string{
		"server_error", "internal_error", "internal_server_error", "internalservererror", "internal", "api_error", "timeout_error",
	}},

	{class: llm.RateLimit, statuses: []int{429}},
	{class: llm.Overloaded, statuses: []int{498, 503, 529}},
	{class: llm.Server, statuses: []int{408, 409, 425}},

	{class: llm.RateLimit, statuses: unsure, text: regexp.MustCompile(
		`rate.?limit|too many requests|requests? per (second|minute|hour|day)|tokens? per (second|minute|hour|day)|too many tokens, please wait|throttl`)},
	{class: llm.ContextOverflow, statuses: unsure, text: regexp.MustCompile(
		`maximum context length|exceeds? (the )?(available |model.?s? |maximum )*context|context (length|size|window) (is |was )?exceeded` +
			`|context limit|context window of|prompt is too long|prompt exceeds max|input is too long|maximum prompt length` +
			`|input token count.*(exceeds the maximum|only supports up to)|greater than the context length` +
			`|reduce the length of (the |your )?(messages|prompt|input)|exceeded model token limit`)},
	{class: llm.Billing, statuses: unsure, text: regexp.MustCompile(
		`credit balance is too low|insufficient (account )?(balance|credits?|funds)|billing (hard )?limit`)},
	{class: llm.ContentFilter, statuses: unsure, text: regexp.MustCompile(
		`content (management )?policy|content filter|flagged (by|as)|inappropriate content|safety system`)},
	{class: llm.Overloaded, statuses: unsure, text: regexp.MustCompile(`overloaded|at capacity|temporarily unavailable`)},
	{class: llm.Auth, statuses: unsure, text: regexp.MustCompile(`(invalid|incorrect) api key|api key not valid`)},

	{class: llm.UnknownClass, statuses: []int{0}},
	{class: llm.Server, statuses: []int{500}},
	{class: llm.InvalidRequest, statuses: []int{400, 422}},
}

// classOf looks an error up. names are the vendor's code and type, text is its
// message, both in lower case.
func classOf(status int, names []string, text string) llm.Class {
	for _, r := range table {
		if r.codes != nil && !slices.ContainsFunc(names, func(n string) bool { return slices.Contains(r.codes, n) }) ||
			r.statuses != nil && !slices.Contains(r.statuses, status) ||
			r.text != nil && !r.text.MatchString(text) {
			continue
		}
		return r.class
	}
	switch {
	case status >= 500:
		return llm.Server
	case status >= 300:
		return llm.InvalidRequest // redirects too: they are not followed
	}
	return llm.UnknownClass
}
