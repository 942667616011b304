package openaicompat

import (
	"encoding/base64"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/llm"
)

// chatPart is one part of a user message that holds more than text.
type chatPart struct {
	Type     string    `json:"type"`
	Text     string    `json:"text,omitempty"`
	ImageURL *imageURL `json:"image_url,omitempty"`
	File     *fileData `json:"file,omitempty"`
}

type imageURL struct {
	URL string `json:"url"`
}

type fileData struct {
	Filename string `json:"filename"`
	FileData string `json:"file_data"`
}

// userParts gives the parts of a user message, in order. Texts that stand in a
// row are one part.
func (l *lowering) userParts(parts []llm.Content) ([]chatPart, error) {
	var out []chatPart
	for _, p := range parts {
		switch p.Kind {
		case llm.Text:
			if strings.TrimSpace(p.Text) == "" {
				continue
			}
			if n := len(out); n > 0 && out[n-1].Type == "text" {
				out[n-1].Text += "\n\n" + p.Text
				continue
			}
			out = append(out, chatPart{Type: "text", Text: p.Text})
		case llm.Image, llm.File:
			part, err := l.file(p)
			if err != nil {
				return nil, err
			}
			out = append(out, part)
		default:
			return nil, llm.Errorf(llm.InvalidRequest, "a user message holds %q, which no user says", cutWord(string(p.Kind)))
		}
	}
	return out, nil
}

func (l *lowering) file(p llm.Content) (chatPart, error) {
	image := strings.HasPrefix(p.MediaType, "image/")
	switch {
	case image != (p.Kind == llm.Image), !image && p.MediaType != "application/pdf", !l.caps.Takes(p.MediaType):
		return chatPart{}, llm.Errorf(llm.InvalidRequest, "the model is not known to read files of type %q", cutWord(p.MediaType))
	case len(p.Data) == 0:
		return chatPart{}, llm.Errorf(llm.InvalidRequest, "a file of type %q is empty", cutWord(p.MediaType))
	case len(p.Data) > MaxRequest/4*3:
		return chatPart{}, llm.Errorf(llm.InvalidRequest, "a file of %d bytes does not fit into a request", len(p.Data))
	}
	data := "data:" + p.MediaType + ";base64," + base64.StdEncoding.EncodeToString(p.Data)
	if image {
		return chatPart{Type: "image_url", ImageURL: &imageURL{URL: data}}, nil
	}
	name := p.Name
	if name == "" {
		name = "file.pdf"
	}
	return chatPart{Type: "file", File: &fileData{Filename: name, FileData: data}}, nil
}
