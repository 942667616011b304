package apitest

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/holdfast-dev/holdfast/internal/httpapi"
	"github.com/holdfast-dev/holdfast/internal/httpapi/openapi"
)

// documented is the OpenAPI document with its schemas compiled as they are needed.
type documented struct {
	mu       sync.Mutex
	doc      map[string]any
	compiler *jsonschema.Compiler
}

var theDocument = sync.OnceValues(func() (*documented, error) {
	raw, err := openapi.Document(httpapi.Operations(), "test")
	if err != nil {
		return nil, err
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	return &documented{doc: doc.(map[string]any), compiler: c}, c.AddResource("openapi.json", doc)
})

// conforms says whether an answer is one that the document promises.
func conforms(req *http.Request, r *Reply) error {
	_, pattern := patterns().Handler(req)
	method, path, ok := strings.Cut(pattern, " ")
	if r.Status == http.StatusMethodNotAllowed && !slices.Contains(strings.Split(r.Header.Get("Allow"), ", "), req.Method) {
		return nil // the path is another's too, as /v1/deliveries/replay is /v1/deliveries/{d}
	}
	if !ok || req.Method == "HEAD" {
		return nil // no operation, or no body
	}
	d, err := theDocument()
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	operation, _ := d.doc["paths"].(map[string]any)[path].(map[string]any)[strings.ToLower(method)].(map[string]any)
	answers := operation["responses"].(map[string]any)
	status := fmt.Sprint(r.Status)
	answer, ok := answers[status].(map[string]any)
	if !ok {
		if r.Status < 500 {
			return fmt.Errorf("status %s is not documented", status)
		}
		status, answer = "default", answers["default"].(map[string]any)
	}
	content, ok := answer["content"].(map[string]any)
	if !ok {
		if len(r.Body) > 0 {
			return fmt.Errorf("a body where none is documented")
		}
		return nil
	}
	media, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	if content[media] == nil {
		return fmt.Errorf("media type %q is not documented", media)
	}
	if !strings.HasSuffix(media, "json") {
		return nil
	}
	escape := strings.NewReplacer("~", "~0", "/", "~1")
	at := strings.Join([]string{"openapi.json#/paths", escape.Replace(path), strings.ToLower(method), "responses", status, "content", escape.Replace(media), "schema"}, "/")
	schema, err := d.compiler.Compile(strings.NewReplacer("{", "%7B", "}", "%7D").Replace(at))
	if err != nil {
		return err
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(r.Body))
	if err != nil {
		return err
	}
	return schema.Validate(v)
}

// patterns are those of the door's mux.
var patterns = sync.OnceValue(func() *http.ServeMux {
	mux := http.NewServeMux()
	for _, op := range httpapi.Operations() {
		mux.Handle(op.Method+" "+op.Path, http.NotFoundHandler())
	}
	return mux
})
