package provider

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/provider/internal/apiserver"
)

// inNewDirectory returns a Terraform with the provider as a program, in a directory with a configuration.
func inNewDirectory(t *testing.T, rc, config string) *cli {
	t.Helper()
	c := newCLI(t, rc, t.TempDir(), nil)
	c.configure(config)
	return c
}

// inAttachedDirectory is inNewDirectory with newAttachedCLI.
func inAttachedDirectory(t *testing.T, rc, config string) *cli {
	t.Helper()
	c := newAttachedCLI(t, rc, t.TempDir(), nil)
	c.configure(config)
	return c
}

// configure replaces the directory's configuration.
func (c *cli) configure(config string) {
	c.tb.Helper()
	const header = "terraform {\n  required_providers {\n    gpufabric = { source = \"gpufabric/gpufabric\" }\n  }\n}\n"
	must(c.tb, os.WriteFile(filepath.Join(c.dir, "main.tf"), []byte(header+config), 0o600))
}

// unchanged requires an empty plan.
func (c *cli) unchanged() {
	c.tb.Helper()
	if changed, plan := c.changes(); changed {
		c.tb.Errorf("the next plan is not empty:\n%s", plan)
	}
}

// testOwnership holds two states, and the ways in which one state lets go of an object or renames it, to one rule: an object is changed
// and deleted by the state that it belongs to, and by no other. It runs under the program, whose graph orders these.
func testOwnership(t *testing.T, s *apiserver.Server, rc string) {
	pools := s.Dynamic.Resource(rdmaPoolKind.GVR())
	uid := func(name string) types.UID {
		obj, err := pools.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return ""
		}
		return obj.GetUID()
	}
	// kept requires that the object of a name is there and the same.
	kept := func(t *testing.T, name string, as types.UID) {
		t.Helper()
		if now := uid(name); now != as || as == "" {
			t.Errorf("pool %s has UID %q, want %q", name, now, as)
		}
	}
	cluster := fmt.Sprintf("provider \"gpufabric\" {\n  config_path = %q\n}\n", s.Kubeconfig)
	pool := func(address, name, more string) string {
		return fmt.Sprintf("resource \"gpufabric_rdma_pool\" %q {\n  name = %q\n  resource_name = \"a\"\n  devices = [\"ib0\"]\n%s\n}\n",
			address, name, more)
	}
	t.Run("a replacement by create_before_destroy under the same name is refused, and the object stays", func(t *testing.T) {
		config := func(input int, more string) string {
			return cluster + pool("a", "cbd", "  lifecycle {\n    create_before_destroy = true\n"+more+"  }\n") +
				fmt.Sprintf("resource \"terraform_data\" \"t\" {\n  input = %d\n}\n", input)
		}
		const trigger = "    replace_triggered_by = [terraform_data.t]\n"
		c := inAttachedDirectory(t, rc, config(1, trigger))
		c.run("apply", "-auto-approve")
		was := uid("cbd")
		c.configure(config(2, trigger))
		fails(t, c, "create_before_destroy", "apply", "-auto-approve")
		kept(t, "cbd", was)
		fails(t, c, "create_before_destroy", "apply", "-auto-approve", "-replace=gpufabric_rdma_pool.a")
		kept(t, "cbd", was)
		c.configure(config(2, ""))
		c.run("apply", "-auto-approve")
		c.unchanged()
		kept(t, "cbd", was)
		contains(t, c.run("destroy", "-auto-approve"), "2 destroyed")
	})
	t.Run("a replacement that destroys first makes another object", func(t *testing.T) {
		c := inAttachedDirectory(t, rc, cluster+pool("a", "replaced", ""))
		c.run("apply", "-auto-approve")
		was := uid("replaced")
		contains(t, c.run("apply", "-auto-approve", "-replace=gpufabric_rdma_pool.a"), "1 added, 0 changed, 1 destroyed")
		if now := uid("replaced"); now == was || now == "" {
			t.Errorf("UID %q before and %q after", was, now)
		}
		c.unchanged()
		c.run("destroy", "-auto-approve")
	})
	t.Run("moved, to another name and into for_each, changes nothing", func(t *testing.T) {
		c := inAttachedDirectory(t, rc, cluster+pool("a", "moved", ""))
		c.run("apply", "-auto-approve")
		was := uid("moved")
		c.configure(cluster + pool("b", "moved", "") + "moved {\n  from = gpufabric_rdma_pool.a\n  to = gpufabric_rdma_pool.b\n}\n")
		contains(t, c.run("apply", "-auto-approve"), "0 added, 0 changed, 0 destroyed")
		c.configure(cluster + pool("b", "moved", "  for_each = toset([\"x\"])") +
			"moved {\n  from = gpufabric_rdma_pool.b\n  to = gpufabric_rdma_pool.b[\"x\"]\n}\n")
		contains(t, c.run("apply", "-auto-approve"), "0 added, 0 changed, 0 destroyed")
		kept(t, "moved", was)
		c.run("destroy", "-auto-approve")
	})
	t.Run("two states that declare one name", func(t *testing.T) {
		c := inAttachedDirectory(t, rc, cluster+pool("a", "both", ""))
		c.run("apply", "-auto-approve")
		was := uid("both")
		other := inAttachedDirectory(t, rc, cluster+pool("a", "both", "  rdma_hca_max = 7"))
		fails(t, other, "import", "apply", "-auto-approve")
		fails(t, other, "RDMAPool of a Terraform state", "import", "gpufabric_rdma_pool.a", "both")
		contains(t, other.run("destroy", "-auto-approve"), "0 destroyed")
		kept(t, "both", was)
		c.unchanged()
		contains(t, c.run("destroy", "-auto-approve"), "1 destroyed")
	})
	t.Run("an object that the state forgot is refused, and imported", func(t *testing.T) {
		c := inAttachedDirectory(t, rc, cluster+pool("a", "forgotten", ""))
		c.run("apply", "-auto-approve")
		was := uid("forgotten")
		c.configure(cluster + "removed {\n  from = gpufabric_rdma_pool.a\n  lifecycle {\n    destroy = false\n  }\n}\n")
		contains(t, c.run("apply", "-auto-approve"), "0 added, 0 changed, 0 destroyed")
		kept(t, "forgotten", was)
		c.configure(cluster + pool("a", "forgotten", ""))
		fails(t, c, "import", "apply", "-auto-approve")
		c.configure(cluster + pool("a", "forgotten", "") + "import {\n  to = gpufabric_rdma_pool.a\n  id = \"forgotten\"\n}\n")
		out, err := c.try("plan")
		if err == nil {
			t.Fatalf("the import of an object with a mark succeeds:\n%s", out)
		}
		markedObject(t, s.Dynamic, "gpufabric_rdma_pool", "forgotten").release(t, out)
		contains(t, c.run("apply", "-auto-approve"), "1 imported, 0 added, 0 changed, 0 destroyed")
		c.unchanged()
		kept(t, "forgotten", was)
		contains(t, c.run("destroy", "-auto-approve"), "1 destroyed")
	})
	t.Run("an object moves to another state, which the first state notices", func(t *testing.T) {
		c := inAttachedDirectory(t, rc, cluster+pool("a", "given", ""))
		c.run("apply", "-auto-approve")
		was := uid("given")
		other := inAttachedDirectory(t, rc, cluster+pool("a", "given", "  rdma_hca_max = 7"))
		out, err := other.try("import", "gpufabric_rdma_pool.a", "given")
		if err == nil {
			t.Fatalf("the import of another state's object succeeds:\n%s", out)
		}
		markedObject(t, s.Dynamic, "gpufabric_rdma_pool", "given").release(t, out)
		other.run("import", "gpufabric_rdma_pool.a", "given")
		other.run("apply", "-auto-approve")
		other.unchanged()
		contains(t, oneLine(c.run("plan")), "belongs to somebody else now", "1 to add") // nobody ran `terraform state rm`
		contains(t, c.run("destroy", "-auto-approve"), "0 destroyed")
		kept(t, "given", was)
		contains(t, other.run("destroy", "-auto-approve"), "1 destroyed")
	})
	t.Run("a name that moves from one resource to another in one apply", func(t *testing.T) {
		c := inAttachedDirectory(t, rc, cluster+pool("a", "swap-1", "")+pool("b", "swap-2", ""))
		c.run("apply", "-auto-approve")
		c.configure(cluster + pool("a", "swap-3", "") + pool("b", "swap-1", "  depends_on = [gpufabric_rdma_pool.a]"))
		contains(t, c.run("apply", "-auto-approve"), "2 added, 0 changed, 2 destroyed")
		c.unchanged()
		c.run("destroy", "-auto-approve")
	})
}
