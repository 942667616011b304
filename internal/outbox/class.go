package outbox

import "strings"

// Classes of failures: the few words by which people look for dead letters, and
// by which it is decided whether another attempt can help.
const (
	ClassNetwork   = "network"   // no connection, or one that broke
	ClassDNS       = "dns"       // the name has no address
	ClassTimeout   = "timeout"   // no answer in time
	ClassTLS       = "tls"       // no trusted connection
	ClassThrottled = "throttled" // 408, 425, 429: come again
	ClassServer    = "server"    // 5xx, and what is no HTTP status at all
	ClassRefused   = "refused"   // any other 4xx: the receiver's last word on this message
	ClassRedirect  = "redirect"  // 3xx, never followed
	ClassGone      = "gone"      // 410: the receiver's last word on all messages
	ClassBlocked   = "blocked"   // the guard does not allow the address
	ClassSecret    = "secret"    // what it is signed with is not there
	ClassInvalid   = "invalid"   // it cannot be sent, to nobody
	ClassExpired   = "expired"   // it was too old
	ClassAbandoned = "abandoned" // the process died over the attempt
	ClassErased    = "erased"    // its content is gone
	ClassContract  = "contract"  // the contract of the session that it was for
)

// Classes lists the classes.
func Classes() []string {
	return []string{ClassNetwork, ClassDNS, ClassTimeout, ClassTLS, ClassThrottled, ClassServer, ClassRefused, ClassRedirect, ClassGone,
		ClassBlocked, ClassSecret, ClassInvalid, ClassExpired, ClassAbandoned, ClassErased, ClassContract}
}

// Codes that the room itself gives.
const (
	CodeAbandoned = "abandoned"
	CodeErased    = "erased"
	CodeExpired   = "expired"
	CodeTooLarge  = "payload_too_large"
)

// classes are those of codes that stand for one thing, whatever the status.
var classes = map[string]string{
	"connection": ClassNetwork, "interrupted": ClassAbandoned, "dns": ClassDNS, "timeout": ClassTimeout, "tls": ClassTLS,
	"redirect": ClassRedirect, "dial_refused": ClassBlocked, "invalid": ClassInvalid,
	CodeAbandoned: ClassAbandoned, CodeErased: ClassErased, CodeExpired: ClassExpired, CodeTooLarge: ClassInvalid,
}

// Class gives the class of a failure by its code, and by the HTTP status where
// there was one. A code may begin with the word of its class: secret_unavailable,
// contract_violated, http_503.
func Class(code string, status int) string {
	if class, ok := classes[code]; ok {
		return class
	}
	if status == 0 {
		status = statusOf(code)
	}
	switch {
	case status == 408 || status == 425 || status == 429:
		return ClassThrottled
	case status == 410:
		return ClassGone
	case status >= 300 && status < 400:
		return ClassRedirect
	case status >= 400 && status < 500:
		return ClassRefused
	case status != 0:
		return ClassServer
	}
	word, _, _ := strings.Cut(code, "_")
	for _, class := range Classes() {
		if word == class {
			return class
		}
	}
	return ClassNetwork
}

// statusOf reads http_NNN; 0: it is none.
func statusOf(code string) int {
	digits, ok := strings.CutPrefix(code, "http_")
	if !ok || len(digits) != 3 {
		return 0
	}
	n := 0
	for _, d := range []byte(digits) {
		if d < '0' || d > '9' {
			return 0
		}
		n = n*10 + int(d-'0')
	}
	return n
}

func classOf(class, code string, status int) string {
	if class != "" {
		return class
	}
	return Class(code, status)
}

// Health is what an outcome says of the receiver.
type Health int

// The kinds of health.
const (
	Unknown Health = iota // nothing: it was never asked, or died unheard
	There                 // it answered, with its word on the message
	Failing               // it did not, and may later
)

// healthOf says what a failure of a class says of the receiver.
func healthOf(class string) Health {
	switch class {
	case ClassNetwork, ClassDNS, ClassTimeout, ClassTLS, ClassThrottled, ClassServer:
		return Failing
	case ClassRefused, ClassRedirect, ClassGone, ClassContract:
		return There
	}
	return Unknown
}

// Retryable says whether another attempt may help after a failure of a class.
func Retryable(class string) bool {
	switch class {
	case ClassSecret, ClassAbandoned:
		return true
	}
	return healthOf(class) == Failing
}
