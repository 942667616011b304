package httpapi_test

import (
	"context"
	"crypto/rand"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/eventlog"
	"github.com/holdfast-dev/holdfast/internal/httpapi"
	"github.com/holdfast-dev/holdfast/internal/live"
	"github.com/holdfast-dev/holdfast/internal/tokens"
)

// oneToken is a store with a token and nothing else.
type oneToken struct {
	httpapi.Store
	row eventlog.TokenRow
}

func (s oneToken) TokenByID(context.Context, string) (eventlog.TokenRow, error)   { return s.row, nil }
func (s oneToken) TokenByHash(context.Context, string) (eventlog.TokenRow, error) { return s.row, nil }

// blank is an answer that nobody reads.
type blank struct{ header http.Header }

func (b *blank) Header() http.Header         { return b.header }
func (b *blank) Write(p []byte) (int, error) { return len(p), nil }
func (b *blank) WriteHeader(int)             {}

// What everything before a handler costs: a request with a known token that reads
// nothing of the store.
func BenchmarkServe(b *testing.B) {
	text, row, err := tokens.New(rand.Reader, "bench", "reader", "", time.Now())
	if err != nil {
		b.Fatal(err)
	}
	h, err := httpapi.New(httpapi.Config{Store: oneToken{row: row}, Admission: admission.New(admission.Config{}), Hub: &live.Hub{}, Logger: slog.New(slog.DiscardHandler),
		Metrics: func() ([]byte, error) { return []byte("x"), nil }, TokenRate: 1_000_000_000 / 2})
	if err != nil {
		b.Fatal(err)
	}
	r := httptest.NewRequest("GET", "http://127.0.0.1:7411/metrics", nil)
	r.RemoteAddr, r.Body = "127.0.0.1:4711", http.NoBody
	r.Header.Set("Authorization", "Bearer "+text)
	rec := httptest.NewRecorder()
	if h.ServeHTTP(rec, r); rec.Code != 200 {
		b.Fatal(rec.Code, rec.Body)
	}
	b.ReportAllocs()
	for b.Loop() {
		h.ServeHTTP(&blank{http.Header{}}, r)
	}
}
