package tree_test

import (
	"os"
	"testing"

	"gpufabric.io/fakes/internal/memdir"
)

func TestMain(m *testing.M) { os.Exit(memdir.Run(m)) }
