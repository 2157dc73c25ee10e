// Package validation proves a cluster's fabric by a job. It makes the job's objects from the manifests beside it, which are those
// of examples/manifests, follows the job to its end, and reads the output of its pods.
package validation

import (
	"bytes"
	_ "embed"
	"fmt"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"gpufabric.io/provider/internal/object"
)

// Tests that a Check can run.
const (
	// Ping starts a pod on each node with a channel of one new compute domain.
	Ping = "ping"
	// Bandwidth runs nvbandwidth over all GPUs of the nodes, by the MPI operator.
	Bandwidth = "bandwidth"
)

// Check is a job that proves the fabric between some nodes.
type Check struct {
	Test            string // Ping or Bandwidth
	Namespace, Name string // of the domain and of the job
	Nodes           int64
	GPUsPerNode     int64                 // of Bandwidth
	Image           string                // empty: the manifest's
	NodeSelector    *metav1.LabelSelector // which nodes may be chosen; nil: all of a clique
}

// checkLabel marks the objects that a check created: its domain, its job and their pods; its value is the check's name.
const checkLabel = "gpufabric.io/fabric-check"

//go:embed ping.yaml
var pingManifest []byte

//go:embed bandwidth.yaml
var bandwidthManifest []byte

var (
	jobKind    = object.Kind{Group: "batch", Version: "v1", Name: "Job", Plural: "jobs", Namespaced: true}
	mpiJobKind = object.Kind{Group: "kubeflow.org", Version: "v2beta1", Name: "MPIJob", Plural: "mpijobs", Namespaced: true}
)

// job is the kind of the check's job.
func (c Check) job() object.Kind {
	if c.Test == Bandwidth {
		return mpiJobKind
	}
	return jobKind
}

// objects returns the check's domain and its job.
func (c Check) objects() (theDomain, job *unstructured.Unstructured, err error) {
	manifest := pingManifest
	if c.Test == Bandwidth {
		manifest = bandwidthManifest
	}
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifest), len(manifest))
	theDomain, job = &unstructured.Unstructured{}, &unstructured.Unstructured{}
	for _, obj := range []*unstructured.Unstructured{theDomain, job} {
		if err := decoder.Decode(obj); err != nil {
			return nil, nil, fmt.Errorf("read the manifest of the %s test: %w", c.Test, err)
		}
		dropNulls(obj.Object)
		obj.SetNamespace(c.Namespace)
		obj.SetName(c.Name)
		obj.SetLabels(map[string]string{checkLabel: c.Name})
	}
	at(theDomain.Object, "spec")["numNodes"] = c.Nodes
	at(theDomain.Object, "spec", "channel", "resourceClaimTemplate")["name"] = c.template()
	if c.Test == Bandwidth {
		c.fitBandwidth(at(job.Object, "spec"))
	} else {
		spec := at(job.Object, "spec")
		spec["completions"], spec["parallelism"] = c.Nodes, c.Nodes
		c.fitMember(at(spec, "template"))
	}
	return theDomain, job, nil
}

// dropNulls removes empty fields of a manifest, as kubectl does: server-side apply treats null as a value, and a schema refuses it.
func dropNulls(value any) {
	switch value := value.(type) {
	case map[string]any:
		for key, inner := range value {
			if inner == nil {
				delete(value, key)
			}
			dropNulls(inner)
		}
	case []any:
		for _, inner := range value {
			dropNulls(inner)
		}
	}
}

// template is the name of the claim template that the controller makes for the domain.
func (c Check) template() string { return c.Name + "-channel" }

// fitBandwidth gives the MPIJob its size. Its launcher may run anywhere: not every cluster has its control plane among its nodes.
func (c Check) fitBandwidth(spec map[string]any) {
	spec["slotsPerWorker"] = c.GPUsPerNode
	worker := at(spec, "mpiReplicaSpecs", "Worker")
	worker["replicas"] = c.Nodes
	c.fitMember(at(worker, "template"))
	at(container(at(worker, "template")), "resources", "limits")["nvidia.com/gpu"] = c.GPUsPerNode

	launcher := at(spec, "mpiReplicaSpecs", "Launcher", "template")
	c.fit(launcher)
	delete(at(launcher, "spec"), "affinity")
	container(launcher)["args"] = []any{
		"--bind-to",
		"core",
		"--map-by",
		fmt.Sprintf("ppr:%d:node", c.GPUsPerNode),
		"-np",
		strconv.FormatInt(c.Nodes*c.GPUsPerNode, 10),
		"--report-bindings",
		"-q",
		"nvbandwidth",
		"-t",
		bandwidthTest,
	}
}

// fit marks a pod template as the check's, and gives it the image.
func (c Check) fit(template map[string]any) {
	at(template, "metadata", "labels")[checkLabel] = c.Name
	if c.Image != "" {
		container(template)["image"] = c.Image
	}
}

// fitMember does so for a pod that is a member of the domain: it claims a channel and runs where the user says, beside the check's others
// only.
func (c Check) fitMember(template map[string]any) {
	c.fit(template)
	spec := at(template, "spec")
	c.choose(spec)
	for _, affinity := range []string{"podAffinity", "podAntiAffinity"} {
		terms, _ := at(spec, "affinity", affinity)["requiredDuringSchedulingIgnoredDuringExecution"].([]any)
		for _, term := range terms {
			if term, ok := term.(map[string]any); ok {
				term["labelSelector"] = map[string]any{"matchLabels": map[string]any{checkLabel: c.Name}}
			}
		}
	}
	claims, _ := spec["resourceClaims"].([]any)
	for _, claim := range claims {
		if claim, ok := claim.(map[string]any); ok {
			claim["resourceClaimTemplateName"] = c.template()
		}
	}
}

// choose lets a pod run on the selected nodes only.
func (c Check) choose(spec map[string]any) {
	if c.NodeSelector == nil {
		return
	}
	for key, value := range c.NodeSelector.MatchLabels {
		at(spec, "nodeSelector")[key] = value
	}
	expressions := make([]any, 0, len(c.NodeSelector.MatchExpressions))
	for _, e := range c.NodeSelector.MatchExpressions {
		expression := map[string]any{"key": e.Key, "operator": string(e.Operator)}
		if values := anys(e.Values); len(values) > 0 {
			expression["values"] = values
		}
		expressions = append(expressions, expression)
	}
	if len(expressions) > 0 { // the manifests have no such term of their own for members
		at(spec, "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")["nodeSelectorTerms"] =
			[]any{map[string]any{"matchExpressions": expressions}}
	}
}

func anys(texts []string) []any {
	out := make([]any, 0, len(texts))
	for _, text := range texts {
		out = append(out, text)
	}
	return out
}

// at returns the mapping at a path, made where it is missing.
func at(object map[string]any, path ...string) map[string]any {
	for _, field := range path {
		next, ok := object[field].(map[string]any)
		if !ok {
			next = map[string]any{}
			object[field] = next
		}
		object = next
	}
	return object
}

// container returns the one container of a pod template.
func container(template map[string]any) map[string]any {
	list, _ := at(template, "spec")["containers"].([]any)
	for _, c := range list {
		if c, ok := c.(map[string]any); ok {
			return c
		}
	}
	return map[string]any{}
}
