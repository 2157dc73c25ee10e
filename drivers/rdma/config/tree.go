package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// maxDepth is how deep JSON may nest: a config needs five levels.
const maxDepth = 16

// node is a JSON value with its line. encoding/json stops at the first mistake, accepts keys in any case and keeps the last of two
// equal keys. This tree keeps everything, so that all mistakes can be reported at once.
//
// sigs.k8s.io/json finds unknown and duplicate keys too, but does not give a line and stops at the first value of a wrong type.
// Administrators write config.json by hand, into a ConfigMap of some hundred lines. This reader exists for them: they see every
// mistake of the file at once, with its line.
type node struct {
	line    int
	value   any // nil, bool, json.Number, string, []*node or []member
	isArray bool
}

type jsonMember struct {
	key   string
	line  int
	value *node
}

// parse reads one JSON document, and nothing after it.
func parse(data []byte) (*node, error) {
	p := parser{data: data, decoder: json.NewDecoder(bytes.NewReader(data))}
	p.decoder.UseNumber()
	root, err := p.node(0)
	if err == nil {
		if _, more := p.decoder.Token(); !errors.Is(more, io.EOF) {
			err = fmt.Errorf("line %d: unexpected text after the end of the object", p.line())
		}
	}
	return root, err
}

type parser struct {
	data    []byte
	decoder *json.Decoder
}

// line is the line of the last token read, counted from 1.
func (p *parser) line() int {
	return 1 + bytes.Count(p.data[:min(int(p.decoder.InputOffset()), len(p.data))], []byte("\n"))
}

func (p *parser) token() (json.Token, error) {
	token, err := p.decoder.Token()
	switch {
	case err == nil:
		return token, nil
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return nil, fmt.Errorf("line %d: the JSON ends in the middle", p.line())
	}
	return nil, fmt.Errorf("line %d: %w", p.line(), err)
}

func (p *parser) node(depth int) (*node, error) {
	token, err := p.token()
	if err != nil {
		return nil, err
	}
	n := &node{line: p.line()}
	if depth > maxDepth {
		return nil, fmt.Errorf("line %d: nested deeper than %d levels", n.line, maxDepth)
	}
	switch token {
	case json.Delim('{'):
		members := []jsonMember{}
		for p.decoder.More() {
			key, err := p.token()
			if err != nil {
				return nil, err
			}
			m := jsonMember{line: p.line()}
			m.key, _ = key.(string)
			if m.value, err = p.node(depth + 1); err != nil {
				return nil, err
			}
			members = append(members, m)
		}
		n.value = members
		_, err = p.token()
	case json.Delim('['):
		n.isArray = true
		elements := []*node{}
		for p.decoder.More() {
			element, err := p.node(depth + 1)
			if err != nil {
				return nil, err
			}
			elements = append(elements, element)
		}
		n.value = elements
		_, err = p.token()
	default:
		n.value = token
	}
	return n, err
}

// kind names the value's type as JSON does.
func (n *node) kind() string {
	switch n.value.(type) {
	case nil:
		return "null"
	case bool:
		return "a boolean"
	case json.Number:
		return "a number"
	case string:
		return "a string"
	case []*node:
		return "an array"
	}
	return "an object"
}
