package release

import (
	"context"
	"errors"
	"strings"
	"testing"
)

func TestLockLostNamesTheLeaseWhenAnErrorCameOfIt(t *testing.T) {
	held, cancel := context.WithCancelCause(t.Context())
	if err := lockLost(held, context.Canceled); err != context.Canceled { //nolint:errorlint // it must be the same
		t.Errorf("while the lease is held: %v", err)
	}
	cancel(errLockLost)
	if err := lockLost(held, context.Canceled); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "run Terraform again") {
		t.Errorf("after it was lost: %v", err)
	}
	if err := lockLost(held, nil); err != nil {
		t.Errorf("work that was done before: %v", err)
	}
}
