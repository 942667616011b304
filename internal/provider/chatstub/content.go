package chatstub

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Content is the content of a message: a text, or parts.
type Content struct {
	Text  *string
	Parts []Part
}

// Part is one part of a message's content.
type Part struct {
	Type     string `json:"type"`
	Text     string `json:"text"`
	ImageURL *struct {
		URL    string `json:"url"`
		Detail string `json:"detail"`
	} `json:"image_url"`
	File *struct {
		Filename string `json:"filename"`
		FileData string `json:"file_data"`
	} `json:"file"`
}

// UnmarshalJSON reads a text, null, or a list of parts.
func (c *Content) UnmarshalJSON(data []byte) error {
	if data[0] == '[' {
		return strict(data, &c.Parts)
	}
	return json.Unmarshal(data, &c.Text)
}

func (c Content) text() string {
	if c.Text != nil {
		return *c.Text
	}
	var texts []string
	for _, p := range c.Parts {
		if p.Text != "" {
			texts = append(texts, p.Text)
		}
	}
	return strings.Join(texts, "\n\n")
}

func (c Content) files() bool {
	return slices.ContainsFunc(c.Parts, func(p Part) bool { return p.Type != "text" })
}

// The limits of files: one file, and all of a request's.
const maxFile = 20 << 20

// check gives the rules that the parts of a user message break.
func (c Content) check(rules Rules) (broken []string) {
	want := func(ok bool, rule string) {
		if !ok {
			broken = append(broken, rule)
		}
	}
	want(c.Text != nil || len(c.Parts) > 0, "no content")
	for _, p := range c.Parts {
		want(p.Type == "text" == (p.Text != ""), "a part without its text, or with one that is not its own")
		want(p.Type == "image_url" == (p.ImageURL != nil), "a part without its image, or with one that is not its own")
		want(p.Type == "file" == (p.File != nil), "a part without its file, or with one that is not its own")
		switch {
		case p.ImageURL != nil:
			want(!rules.TextOnly, "this model does not support image input")
			media, data, err := dataURL(p.ImageURL.URL)
			want(err == nil, fmt.Sprintf("an image is not given as a data URL: %v", err))
			want(err != nil || slices.Contains([]string{"image/png", "image/jpeg", "image/gif", "image/webp"}, media) && imageBegins(media, data), "unsupported image")
		case p.File != nil:
			want(!rules.TextOnly, "this model does not support file input")
			media, data, err := dataURL(p.File.FileData)
			want(err == nil && media == "application/pdf" && bytes.HasPrefix(data, []byte("%PDF-")), fmt.Sprintf("a file is no PDF: %v", err))
			want(p.File.Filename != "", "missing required parameter: filename")
		case p.Type != "text":
			want(false, "unknown part type")
		}
	}
	return broken
}

func dataURL(url string) (media string, data []byte, err error) {
	rest, ok := strings.CutPrefix(url, "data:")
	media, encoded, found := strings.Cut(rest, ";base64,")
	if !ok || !found {
		return "", nil, fmt.Errorf("no data: URL with base64")
	}
	data, err = base64.StdEncoding.Strict().DecodeString(encoded)
	if err == nil && (len(data) == 0 || len(data) > maxFile) {
		err = fmt.Errorf("%d bytes are none, or too many", len(data))
	}
	return media, data, err
}

// imageBegins says that the bytes begin like an image of that type.
func imageBegins(media string, data []byte) bool {
	return bytes.HasPrefix(data, []byte(map[string]string{
		"image/png": "\x89PNG\r\n\x1a\n", "image/jpeg": "\xff\xd8\xff", "image/gif": "GIF8", "image/webp": "RIFF",
	}[media]))
}

// strict reads JSON without unknown fields.
func strict(data []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	return dec.Decode(v)
}
