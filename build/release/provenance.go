package release

import (
	"bytes"
	"encoding/json"
)

// inToto is the type of an in-toto attestation's statement, version 1.
const inToto = "https://in-toto.io/Statement/v1"

// BuildType names how `make release` builds; docs/release.md describes it.
const BuildType = Source + "/blob/main/docs/release.md#how-it-is-built"

type statement struct {
	Type          string    `json:"_type"`
	Subject       []subject `json:"subject"`
	PredicateType string    `json:"predicateType"`
	Predicate     any       `json:"predicate"`
}

type subject struct {
	Name   string            `json:"name"`
	Digest map[string]string `json:"digest"`
}

// origin is the predicate of SLSA's provenance, version 1: from which commit and with which tools a release was built. It has no times and
// no name of a machine, so that who builds again gets the same bytes.
func (r *Release) origin() any {
	packages := []map[string]any{{
		"uri": "git+" + Source + "@refs/tags/v" + r.Version, "digest": map[string]string{"gitCommit": r.Commit.Hash},
	}}
	for _, l := range r.Lock.Packages {
		packages = append(packages, map[string]any{"uri": "pkg:deb/debian/" + l.Package + "@" + l.Version})
	}
	return map[string]any{
		"buildDefinition": map[string]any{
			"buildType":            BuildType,
			"externalParameters":   map[string]any{"version": r.Version, "commit": r.Commit.Hash},
			"internalParameters":   map[string]any{"tools": r.Tools},
			"resolvedDependencies": packages,
		},
		"runDetails": map[string]any{"builder": map[string]any{"id": BuildType}},
	}
}

// provenance writes one statement over every file so far and every manifest in oci/: signed as DSSE, or bare without keys.
func (r *Release) provenance() error {
	sums, err := r.sums()
	if err != nil {
		return err
	}
	s := statement{Type: inToto, PredicateType: slsaPredicate, Predicate: r.origin()}
	for _, name := range sortedKeys(r.digests) {
		s.Subject = append(s.Subject, subject{"oci/" + name, map[string]string{"sha256": r.digests[name].Hex}})
	}
	for _, name := range sortedKeys(sums) {
		if !bytes.HasPrefix([]byte(name), []byte("oci/")) {
			s.Subject = append(s.Subject, subject{name, map[string]string{"sha256": sums[name]}})
		}
	}
	write := func(content []byte, err error) error {
		if err != nil {
			return err
		}
		return r.write("provenance.intoto.jsonl", append(content, '\n'))
	}
	if r.Keys == nil {
		return write(json.Marshal(s))
	}
	return write(r.envelope(s))
}
