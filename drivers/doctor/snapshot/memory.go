package snapshot

import (
	"encoding/json"
	"fmt"
	"io"
	"reflect"
)

const (
	// MaxMemory is the memory that the objects of an archive may take, unless the reader allows more. The process takes up to four times as
	// much while it reads.
	MaxMemory = 64 << 20
	// maxObject is the size of one object in bytes of JSON. The API server stores none above 1.5 MiB.
	maxObject = 4 << 20
	// maxParts limits the values of one object that take memory of their own: a few bytes of JSON become a structure of up to 1 KiB.
	maxParts = 50_000
)

// TooLargeError is an archive that would take more memory than allowed.
type TooLargeError struct {
	File string
	// Why names the limit.
	Why string
}

// Error implements error.
func (e *TooLargeError) Error() string {
	return fmt.Sprintf("the archive's file %s: %s; where you trust its author, --from-memory allows more", e.File, e.Why)
}

// budget is the memory that is left for an archive's objects.
type budget struct{ left, most int64 }

// decode reads a list of objects one by one into list, a pointer to a slice.
func (b *budget) decode(from io.Reader, list any) error {
	limited := &perObject{Reader: from}
	decoder := json.NewDecoder(limited)
	if token, err := decoder.Token(); err != nil || token == nil { // null: an empty list
		return err
	} else if token != json.Delim('[') {
		return fmt.Errorf("not a list: it begins with %.20q", fmt.Sprint(token))
	}
	into := reflect.ValueOf(list).Elem()
	kind := into.Type().Elem()
	for decoder.More() {
		limited.read = 0
		var raw json.RawMessage
		if err := decoder.Decode(&raw); err != nil {
			return err
		}
		if n := parts(raw); n > maxParts {
			return &TooLargeError{Why: fmt.Sprintf("an object has more than %d parts", maxParts)}
		}
		object := reflect.New(kind)
		if err := json.Unmarshal(raw, object.Interface()); err != nil {
			return fmt.Errorf("read an object: %w", err)
		}
		// The list grows by a quarter at most, beside which the last one is in memory.
		if b.left -= deep(object.Elem()) + int64(kind.Size())*5/4; b.left < 0 {
			return &TooLargeError{Why: fmt.Sprintf("the objects take more than %d MiB of memory", b.most>>20)}
		}
		into.Set(reflect.Append(into, object.Elem()))
	}
	_, err := decoder.Token()
	return err
}

// perObject fails where more bytes are read than one object may have.
type perObject struct {
	io.Reader
	read int
}

func (p *perObject) Read(into []byte) (int, error) {
	n, err := p.Reader.Read(into)
	if p.read += n; p.read > maxObject {
		return 0, &TooLargeError{Why: fmt.Sprintf("an object has more than %d MiB", maxObject>>20)}
	}
	return n, err
}

// parts counts the objects, lists and elements of a valid JSON text.
func parts(raw []byte) int {
	n, text := 0, false
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case text && c == '\\':
			i++
		case c == '"':
			text = !text
		case !text && (c == '{' || c == '[' || c == ','):
			n++
		}
	}
	return n
}

// deep is the memory behind a value, beside the value itself, in bytes.
func deep(v reflect.Value) (n int64) {
	switch v.Kind() {
	case reflect.String:
		return int64(v.Len())
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			n = int64(v.Elem().Type().Size()) + deep(v.Elem())
		}
	case reflect.Slice:
		n = int64(v.Cap()) * int64(v.Type().Elem().Size())
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return n
		}
		for i := range v.Len() {
			n += deep(v.Index(i))
		}
	case reflect.Map:
		const entry = 16 // of the table, beside key and value
		for each := v.MapRange(); each.Next(); {
			n += entry + int64(v.Type().Key().Size()+v.Type().Elem().Size()) + deep(each.Key()) + deep(each.Value())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			n += deep(v.Field(i))
		}
	}
	return n
}
