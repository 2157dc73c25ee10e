package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"gpufabric.io/fakes/fault"
)

// faultsPath is where FabricFaults are served; the chart fake-hardware has their CRD.
const faultsPath = "/apis/fakefabric.gpufabric.io/v1alpha1/fabricfaults"

// fabricFault is the part of a FabricFault that the agent reads. Its spec does not change.
type fabricFault struct {
	Metadata struct {
		Name              string `json:"name"`
		UID               string `json:"uid"`
		CreationTimestamp string `json:"creationTimestamp"`
	} `json:"metadata"`
	Spec struct {
		// Nodes are names, NodeSelector labels that a node must have; with neither the fault is every fake node's.
		Nodes        []string          `json:"nodes"`
		NodeSelector map[string]string `json:"nodeSelector"`
		Event        string            `json:"event"`
		Arguments    map[string]value  `json:"arguments"`
		// Duration is the time after which the opposite event happens; empty: never.
		Duration string `json:"duration"`
	} `json:"spec"`
	Status struct {
		Nodes map[string]outcome `json:"nodes"`
	} `json:"status"`
}

// value is an argument, which may be written as a number.
type value string

// UnmarshalJSON implements json.Unmarshaler.
func (v *value) UnmarshalJSON(data []byte) error {
	if !bytes.HasPrefix(data, []byte(`"`)) {
		*v = value(data)
		return nil
	}
	var text string
	err := json.Unmarshal(data, &text)
	*v = value(text)
	return err
}

// Results of a fault on one node.
const (
	resultWaiting     = "Waiting"
	resultApplied     = "Applied"
	resultReverted    = "Reverted"
	resultRefused     = "Refused"
	resultInterrupted = "Interrupted"
)

// outcome is a node's part of a FabricFault's status.
type outcome struct {
	Result  string `json:"result"`
	Message string `json:"message,omitempty"`
	// Time is when the node got this result, Until when the event is undone, in RFC 3339.
	Time  string `json:"time,omitempty"`
	Until string `json:"until,omitempty"`
}

func (f *fabricFault) arguments() fault.Arguments {
	args := fault.Arguments{}
	for name, v := range f.Spec.Arguments {
		args[name] = string(v)
	}
	return args
}

// selects reports whether the fault is for the node, and whether it was named or described, rather than meant as one of all.
func (f *fabricFault) selects(name string, labels map[string]string) (selected, meant bool) {
	if len(f.Spec.Nodes) > 0 && !slices.Contains(f.Spec.Nodes, name) {
		return false, false
	}
	for key, wanted := range f.Spec.NodeSelector {
		if got, has := labels[key]; !has || got != wanted {
			return false, false
		}
	}
	return true, len(f.Spec.Nodes)+len(f.Spec.NodeSelector) > 0
}

func olderFirst(a, b fabricFault) int {
	if c := strings.Compare(a.Metadata.CreationTimestamp, b.Metadata.CreationTimestamp); c != 0 {
		return c
	}
	return strings.Compare(a.Metadata.Name, b.Metadata.Name)
}

// watchFaults calls fn with all FabricFaults by their UID, now and after each change, until the server ends the watch or ctx ends.
func (a *API) watchFaults(ctx context.Context, fn func(map[string]fabricFault)) error {
	known := map[string]fabricFault{}
	read := func(object json.RawMessage) (fabricFault, error) {
		var f fabricFault
		if err := json.Unmarshal(object, &f); err != nil {
			return f, fmt.Errorf("read a FabricFault: %w", err)
		}
		return f, nil
	}
	err := a.watch(ctx, faultsPath, nil, func(all []json.RawMessage) error {
		for _, object := range all {
			f, err := read(object)
			if err != nil {
				return err
			}
			known[f.Metadata.UID] = f
		}
		fn(maps.Clone(known))
		return nil
	}, func(kind string, object json.RawMessage) error {
		f, err := read(object)
		if err != nil {
			return err
		}
		if known[f.Metadata.UID] = f; kind == "DELETED" {
			delete(known, f.Metadata.UID)
		}
		fn(maps.Clone(known))
		return nil
	})
	return fmt.Errorf("watch FabricFaults: %w", err)
}

// reportFault writes one node's result into the status. The UID keeps it from a fault of the same name that was made meanwhile.
func (a *API) reportFault(ctx context.Context, f fabricFault, node string, o outcome) error {
	// In a merge patch null removes fields that an earlier result has and this one has not.
	entry := map[string]any{"result": o.Result, "message": nil, "time": nil, "until": nil}
	for key, text := range map[string]string{"message": o.Message, "time": o.Time, "until": o.Until} {
		if text != "" {
			entry[key] = text
		}
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": f.Metadata.UID},
		"status": map[string]any{"nodes": map[string]any{node: entry}}})
	if err != nil {
		return err
	}
	answer, err := a.do(ctx, http.MethodPatch, faultsPath+"/"+url.PathEscape(f.Metadata.Name)+"/status",
		url.Values{"fieldManager": {"fakefabric"}}, "application/merge-patch+json", body)
	if err != nil {
		return fmt.Errorf("report of FabricFault %s: %w", f.Metadata.Name, err)
	}
	return answer.Close()
}
