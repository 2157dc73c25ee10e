package simnode

import "testing"

func TestPathsAreTranslatedByTheLongestMapping(t *testing.T) {
	paths := NewPaths(
		Mapping{Path: "/", Real: "/sim/r"},
		Mapping{Path: "/var/lib/kubelet", Real: "/sim/k"},
		Mapping{Path: "/var/lib/fakefabric/", Real: "/sim/f"},
	)
	for name, test := range map[string]struct{ in, want string }{
		"the mapped directory itself":          {"/var/lib/kubelet", "/sim/k"},
		"a file below it":                      {"/var/lib/kubelet/plugins/x/dra.sock", "/sim/k/plugins/x/dra.sock"},
		"a neighbour with a longer name":       {"/var/lib/kubelet2/x", "/sim/r/var/lib/kubelet2/x"},
		"a directory given with a last slash":  {"/var/lib/fakefabric/sys", "/sim/f/sys"},
		"a name that leaves the mapping by ..": {"/var/lib/kubelet/../x", "/sim/r/var/lib/x"},
		"the root":                             {"/", "/sim/r"},
	} {
		t.Run(name, func(t *testing.T) {
			if got, ok := paths.Real(test.in); !ok || got != test.want {
				t.Errorf("%s is %s, %t; want %s", test.in, got, ok, test.want)
			}
		})
	}
}

func TestContainersListMountsAndKernelFiles(t *testing.T) {
	container := containerPaths{
		mounts: NewPaths(
			Mapping{Path: "/host", Real: "/sim/r"},
			Mapping{Path: "/var/lib/kubelet/plugins", Real: "/sim/k/plugins"},
			Mapping{Path: "/imexd", Real: "/sim/r/run/imexd/d1"},
		),
		node: NewPaths(Mapping{Path: "/", Real: "/sim/r"}, Mapping{Path: "/var/lib/kubelet", Real: "/sim/k"},
			Mapping{Path: "/proc", Real: "/sim/f/proc"}),
	}
	for name, test := range map[string]struct{ in, want string }{
		"a flag with a mounted directory":             {"--driver-root=/host", "--driver-root=/sim/r"},
		"a flag with the parent of a mount":           {"--kubelet-root=/var/lib/kubelet", "--kubelet-root=/sim/k"},
		"a file of the kernel's":                      {"--proc-devices=/proc/devices", "--proc-devices=/sim/f/proc/devices"},
		"an argument that is a path":                  {"/imexd/nodes.cfg", "/sim/r/run/imexd/d1/nodes.cfg"},
		"a path of the image, which has no directory": {"--config=/etc/gpufabric.yaml", "--config=/etc/gpufabric.yaml"},
		"an address":    {"--metrics-address=:8080", "--metrics-address=:8080"},
		"a role's name": {"compute-domain-plugin", "compute-domain-plugin"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := container.argument(test.in); got != test.want {
				t.Errorf("%s becomes %s; want %s", test.in, got, test.want)
			}
		})
	}
}

func TestPathsGiveAPodOnlyItsOwnAddressBack(t *testing.T) {
	addresses := NewAddresses(0, 3)
	first, err := addresses.Take("")
	if err != nil {
		t.Fatal(err)
	}
	second, err := addresses.Take(first)
	if err != nil || second == first {
		t.Errorf("an address in use was given again: %s, %v", second, err)
	}
	addresses.Give(first)
	if third, err := addresses.Take(""); err != nil || third == first {
		t.Errorf("an address was given again at once: %s, %v", third, err)
	}
	if again, err := addresses.Take(first); err != nil || again != first {
		t.Errorf("a pod came back to %s, %v; want its old address %s", again, err, first)
	}
	if other, err := addresses.Take("127.200.0.9"); err != nil || other == "127.200.0.9" {
		t.Errorf("another node's address was given: %s, %v", other, err)
	}
}

func TestPathsReportExhaustedAddresses(t *testing.T) {
	addresses := NewAddresses(0, 0)
	seen := map[string]bool{addresses.Node(): true}
	for range podsPerNode {
		address, err := addresses.Take("")
		if err != nil || seen[address] {
			t.Fatalf("address %d is %q, %v", len(seen), address, err)
		}
		seen[address] = true
	}
	if address, err := addresses.Take(""); err == nil {
		t.Errorf("a node with all addresses in use gave %s", address)
	}
}

func TestClustersOnOneMachineHaveAddressesOfTheirOwn(t *testing.T) {
	a, err := TakeBlock()
	if err != nil {
		t.Fatal(err)
	}
	b, err := TakeBlock()
	if err != nil {
		t.Fatal(err)
	}
	defer b.Release()
	if a.Number == b.Number {
		t.Fatalf("both got block %d", a.Number)
	}
	number := a.Number
	a.Release()
	c, err := TakeBlock()
	if err != nil || c.Number > number {
		t.Fatalf("a released block was not given again: %v, %v", c, err)
	}
	c.Release()
}
