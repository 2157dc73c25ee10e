package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/doctor/diagnosis"
	"gpufabric.io/drivers/doctor/snapshot"
)

const (
	// examinations is how many answers of the doctor are made at once: each needs the cluster in memory.
	examinations = 1
	// examining bounds an answer. One of 1,008 nodes takes some seconds (docs/reports/measurements.md).
	examining = time.Minute
	// longestName bounds a namespace, a name and the slash between them; Kubernetes allows 63 and 253.
	longestName = 63 + 1 + 253
)

// opinion is an answer of the doctor. The page must not show the API server's address.
type opinion struct {
	Subject string            `json:"subject"`
	First   *diagnosis.Found  `json:"first"`
	Behind  []diagnosis.Found `json:"behind"`
	// Lacking are the kinds that the viewer may not read, or that could not be read.
	Lacking []string `json:"lacking"`
}

// doctor gives the answer of `gpufabric doctor KIND NAME`, with the viewer's rights.
func (s *sessions) doctor(w http.ResponseWriter, r *http.Request) {
	config, user, status, err := s.viewer(r)
	if err != nil {
		s.deny(w, status, err)
		return
	}
	subject, err := subjectOf(r)
	if err != nil {
		refuse(w, http.StatusBadRequest, err)
		return
	}
	if err := s.questions.begin(user); err != nil {
		refuse(w, http.StatusTooManyRequests, err)
		return
	}
	defer s.questions.end(user)
	ctx, cancel := context.WithTimeout(r.Context(), examining)
	defer cancel()
	select {
	case s.examining <- struct{}{}:
		defer func() { <-s.examining }()
	case <-ctx.Done():
		refuse(w, http.StatusServiceUnavailable, errors.New("the doctor is busy; try again in a minute"))
		return
	}
	report, err := examine(ctx, config, subject)
	var missing *diagnosis.NotFoundError
	var silent *snapshot.SilentError
	switch {
	case errors.As(err, &missing):
		refuse(w, http.StatusNotFound, missing)
		return
	case errors.As(err, &silent):
		refuse(w, http.StatusBadGateway, errors.New("the API server does not answer (docs/troubleshooting.md#apiserversilent)"))
		return
	case err != nil:
		klog.FromContext(r.Context()).Error(err, "The doctor gave no answer")
		refuse(w, http.StatusInternalServerError, errors.New(snapshot.WithoutAddress(err)))
		return
	}
	out := opinion{Subject: report.Subject.String(), First: report.First, Behind: report.Behind}
	for _, u := range report.Lacking {
		if u.Why != snapshot.Absent {
			out.Lacking = append(out.Lacking, u.String())
		}
	}
	if unsure := report.Release.Unsure; unsure != "" {
		out.Lacking = append(out.Lacking, unsure)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(out) // the client has gone
}

// subjectOf reads kind and name, which is NAMESPACE/NAME where the kind has a namespace.
func subjectOf(r *http.Request) (diagnosis.Subject, error) {
	query := r.URL.Query()
	subject := diagnosis.Subject{Kind: diagnosis.SubjectKind(query.Get("kind")), Name: query.Get("name")}
	switch {
	case !slices.Contains(diagnosis.SubjectKinds(), subject.Kind):
		return subject, fmt.Errorf("kind is %q; allowed are pod, claim, node, domain, pool and install", subject.Kind)
	case len(subject.Name) > longestName:
		return subject, fmt.Errorf("name has %d bytes; at most %d are allowed", len(subject.Name), longestName)
	case (subject.Kind == diagnosis.Install) != (subject.Name == ""):
		return subject, fmt.Errorf("name is %q; install does not take a name, and %s needs one", subject.Name, subject.Kind)
	}
	switch subject.Kind {
	case diagnosis.Pod, diagnosis.Claim, diagnosis.Domain:
		subject.Namespace = metav1.NamespaceDefault
		if namespace, name, both := strings.Cut(subject.Name, "/"); both {
			subject.Namespace, subject.Name = namespace, name
		}
	case diagnosis.Install, diagnosis.Node, diagnosis.Pool:
	}
	return subject, nil
}

// examine reads the cluster once and returns the first cause.
func examine(ctx context.Context, config *rest.Config, subject diagnosis.Subject) (*diagnosis.Report, error) {
	scope := snapshot.Scope{Namespace: subject.Namespace, System: snapshot.DefaultSystem}
	if subject.Kind == diagnosis.Pod {
		scope.Pod = subject.Name
	}
	taken, err := snapshot.Take(ctx, config, scope)
	if err != nil {
		return nil, err
	}
	return diagnosis.Diagnose(taken, subject)
}
