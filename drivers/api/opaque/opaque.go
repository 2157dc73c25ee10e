// Package opaque reads the configurations that claims and device classes have for drivers. The API server does not check them.
package opaque

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"
)

// Config is one such configuration.
type Config interface {
	// Default fills in omitted fields.
	Default()
	// Validate names every field that is wrong, its value and what is allowed. It is called after Default.
	Validate() field.ErrorList
}

// maxBytes is what the API server accepts in an opaque configuration (10 KiB).
const maxBytes = 10 << 10

// Decode reads a configuration strictly. Its apiVersion must be the given one and its kind one of kinds, which maps each kind to a
// function that makes an empty one. No field may be unknown, duplicated or differ in case. The result is defaulted and valid. The
// error names the mistake and the allowed values; it never quotes more than a few lines of the input. explain may improve a decoder's
// error; nil: it stays.
func Decode(raw []byte, apiVersion string, kinds map[string]func() Config, explain func(raw []byte, err error) error) (Config, error) {
	if len(raw) > maxBytes {
		return nil, fmt.Errorf("the configuration has %d bytes, at most %d are allowed", len(raw), maxBytes)
	}
	if !utf8.Valid(raw) {
		return nil, errors.New("the configuration is not UTF-8")
	}
	var meta metav1.TypeMeta
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &meta); err != nil {
		if named := wrongType(raw, err); named != err { //nolint:errorlint // whether it was reworded
			return nil, named
		}
		return nil, fmt.Errorf("the configuration is not a JSON object: %.200w", err)
	}
	if meta.APIVersion != apiVersion {
		return nil, fmt.Errorf("apiVersion: %.80q, allowed is %q", meta.APIVersion, apiVersion)
	}
	newConfig, ok := kinds[meta.Kind]
	if !ok {
		return nil, fmt.Errorf("kind: %.80q, allowed are %s", meta.Kind, strings.Join(slices.Sorted(maps.Keys(kinds)), ", "))
	}
	config := newConfig()
	strict, err := kjson.UnmarshalStrict(raw, config)
	if err != nil {
		if explain != nil {
			err = explain(raw, err)
		}
		return nil, fmt.Errorf("%s: %w", meta.Kind, shorten(wrongType(raw, err)))
	}
	if err := errors.Join(strict...); err != nil {
		return nil, fmt.Errorf("%s: %w", meta.Kind, shorten(err))
	}
	config.Default()
	if errs := config.Validate(); len(errs) > 0 {
		return nil, fmt.Errorf("%s: %w", meta.Kind, shorten(errs.ToAggregate()))
	}
	return config, nil
}

// shorten keeps an author's input from filling Events and logs through an error that quotes it.
func shorten(err error) error {
	const limit = 600
	if text := err.Error(); len(text) > limit {
		return errors.New(strings.ToValidUTF8(text[:limit], "") + "…")
	}
	return err
}
