package wire

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"time"
)

// VendorError is what a vendor says of a failure, whatever shape it said it in.
type VendorError struct {
	Code    string // "context_length_exceeded", "insufficient_quota", "429"
	Type    string // "overloaded_error", "RESOURCE_EXHAUSTED"
	Message string // raw text of the vendor: pass it through Safe
	// Upstream is the raw answer of the vendor behind a router, when it gave one.
	Upstream   string
	RetryDelay time.Duration // asked for in the body
}

// status is the HTTP status that an error inside a 200 answer speaks of.
func (v VendorError) status() int {
	n, err := strconv.Atoi(v.Code)
	if err != nil || n < 400 || n > 599 {
		return 0
	}
	return n
}

// ParseVendorError finds the error in a JSON object of one of the known shapes:
// {"error": {message, type, code, status, details}}, {"error": "text"},
// {"message", "type", "code"}, {"detail": "text" or [{"msg"}]}, {"errors": [{message}]},
// or a list with one of these as its first element.
// It reports false when there is none.
func ParseVendorError(body []byte) (VendorError, bool) {
	body = bytes.TrimSpace(body)
	if len(body) > 0 && body[0] == '[' {
		var list []json.RawMessage
		if json.Unmarshal(body, &list) != nil || len(list) == 0 {
			return VendorError{}, false
		}
		body = list[0]
	}
	var outer map[string]json.RawMessage
	if json.Unmarshal(body, &outer) != nil {
		return VendorError{}, false
	}
	if inner, ok := outer["error"]; ok && present(inner) {
		if v, ok := fromObject(inner); ok {
			return v, true
		}
		return VendorError{Message: text(inner), Code: text(outer["code"]), Type: text(outer["type"])}, true
	}
	if inner, ok := outer["errors"]; ok && present(inner) {
		var list []json.RawMessage
		if json.Unmarshal(inner, &list) == nil && len(list) > 0 {
			if v, ok := fromObject(list[0]); ok {
				return v, true
			}
		}
		return VendorError{}, true
	}
	v, _ := fromObject(body)
	if v.Message == "" {
		v.Message = detail(outer["detail"])
	}
	return v, v.Message != "" || text(outer["object"]) == "error" || v.Type == "error"
}

func fromObject(raw json.RawMessage) (VendorError, bool) {
	var o map[string]json.RawMessage
	if json.Unmarshal(raw, &o) != nil {
		return VendorError{}, false
	}
	v := VendorError{Code: text(o["code"]), Type: text(o["type"]), Message: text(o["message"])}
	for _, name := range []string{"Message", "msg", "error_msg"} {
		if v.Message == "" {
			v.Message = text(o[name])
		}
	}
	if v.Type == "" {
		v.Type = text(o["status"])
	}
	var meta struct {
		Raw json.RawMessage `json:"raw"`
	}
	if json.Unmarshal(o["metadata"], &meta) == nil {
		v.Upstream = text(meta.Raw)
	}
	v.RetryDelay = retryInfo(o["details"])
	return v, true
}

// retryInfo reads google.rpc.RetryInfo from the details of an error.
func retryInfo(raw json.RawMessage) time.Duration {
	var details []struct {
		Type  string `json:"@type"`
		Delay string `json:"retryDelay"`
	}
	if json.Unmarshal(raw, &details) != nil {
		return 0
	}
	for _, d := range details {
		if n, ok := strings.CutSuffix(d.Delay, "s"); ok && strings.HasSuffix(d.Type, "RetryInfo") {
			return decimal(n, time.Second)
		}
	}
	return 0
}

// detail reads what FastAPI servers put under "detail".
func detail(raw json.RawMessage) string {
	if s := text(raw); s != "" {
		return s
	}
	var list []struct {
		Msg string `json:"msg"`
	}
	if json.Unmarshal(raw, &list) == nil && len(list) > 0 {
		return list[0].Msg
	}
	var one struct {
		Message string `json:"message"`
	}
	_ = json.Unmarshal(raw, &one) // not an object: no message
	return one.Message
}

// text gives a JSON string's value, or a number as written; "" for the rest.
func text(raw json.RawMessage) string {
	if len(raw) == 0 {
		return ""
	}
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	if c := raw[0]; c == '-' || c >= '0' && c <= '9' {
		return string(raw[:min(len(raw), 32)])
	}
	return ""
}

// present says that a value is not one of the ways to say "no error".
func present(raw json.RawMessage) bool {
	switch string(bytes.TrimSpace(raw)) {
	case "", "null", `""`, "{}", "[]", "false":
		return false
	}
	return true
}
