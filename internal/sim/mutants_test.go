package sim_test

import (
	"github.com/holdfast-dev/holdfast/internal/daemon"
	"github.com/holdfast-dev/holdfast/internal/delivery"
	"github.com/holdfast-dev/holdfast/internal/llm"
	"github.com/holdfast-dev/holdfast/internal/tool"
)

// mutant breaks a guard on purpose, by what stands around a port. The zero
// value breaks nothing.
type mutant struct {
	name     string
	ofStore  func(daemon.Store, *node) daemon.Store
	ofModel  func(llm.Model, *node) llm.Model
	ofTool   func(tool.Tool, *node) tool.Tool
	ofSender func(delivery.Sender, *node) delivery.Sender
}

func (m *mutant) store(s daemon.Store, n *node) daemon.Store {
	if m.ofStore == nil {
		return s
	}
	return m.ofStore(s, n)
}

func (m *mutant) model(x llm.Model, n *node) llm.Model {
	if m.ofModel == nil {
		return x
	}
	return m.ofModel(x, n)
}

func (m *mutant) tools(list []tool.Tool, n *node) []tool.Tool {
	if m.ofTool != nil {
		for i := range list {
			list[i] = m.ofTool(list[i], n)
		}
	}
	return list
}

func (m *mutant) send(s delivery.Sender, n *node) delivery.Sender {
	if m.ofSender == nil {
		return s
	}
	return m.ofSender(s, n)
}
