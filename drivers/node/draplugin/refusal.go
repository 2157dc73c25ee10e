package draplugin

import (
	"context"
	"errors"
	"fmt"

	"gpufabric.io/drivers/node/ledger"
)

// Refusal is an error that the claim's author or the cluster's administrator can fix. Reason is a CamelCase word that labels the
// condition, the Event and the metric.
type Refusal struct {
	Reason string
	Err    error
}

// Refuse makes a Refusal. The message should name the field, its value, the allowed values and the remedy.
func Refuse(reason, format string, args ...any) error {
	return &Refusal{Reason: reason, Err: fmt.Errorf(format, args...)}
}

func (r *Refusal) Error() string { return r.Err.Error() }

// Unwrap returns the underlying error.
func (r *Refusal) Unwrap() error { return r.Err }

// reasonOf is the reason of an error in conditions, Events and metrics.
func reasonOf(err error) string {
	var refusal *Refusal
	var conflict *ledger.ConflictError
	var used *stillUsed
	switch {
	case errors.As(err, &refusal):
		return refusal.Reason
	case errors.As(err, &conflict):
		return "DeviceInUse"
	case errors.As(err, &used):
		return reasonStillUsed
	case errors.Is(err, context.DeadlineExceeded):
		return "TimedOut"
	case errors.Is(err, context.Canceled):
		return "Interrupted"
	default:
		return "PrepareFailed"
	}
}
