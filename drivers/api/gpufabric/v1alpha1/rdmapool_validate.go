package v1alpha1

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// MaxRDMAUnits bounds rdmaHcaMax. The kubelet accepts lists of at most 4 MiB from a device plugin, and a unit needs up to 28 bytes:
// it would refuse a much longer list as a whole.
const MaxRDMAUnits = 100_000

// DefaultRDMAPrefix is the resource prefix of a pool that names none.
const DefaultRDMAPrefix = "rdma"

var (
	resourceName = regexp.MustCompile(`^[a-zA-Z0-9_]+$`)
	pciID        = regexp.MustCompile(`^[0-9a-fA-F]{4}$`)
	pciAddress   = regexp.MustCompile(`^([0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[01][0-9a-fA-F]\.[0-7]$`)
	// An interface's name has at most 15 characters, none of them a slash, a colon or a blank.
	ifName     = regexp.MustCompile(`^[^/:\s]{1,15}$`)
	driverName = regexp.MustCompile(`^[a-zA-Z0-9_.-]{1,64}$`)
)

// Resource is the name under which pods ask for the pool: prefix/name.
func (c *RDMAPoolConfig) Resource() string {
	prefix := c.ResourcePrefix
	if prefix == "" {
		prefix = DefaultRDMAPrefix
	}
	return prefix + "/" + c.ResourceName
}

// Exclusive reports whether a unit of the pool is a whole HCA.
func (c *RDMAPoolConfig) Exclusive() bool { return c.Mode == RDMAExclusive }

// OfFile returns the entry with the default of a config.json: without deviceNodes a unit of a shared pool gives every HCA of the pool,
// as in k8s-rdma-shared-dev-plugin (its server.go: Allocate).
func (c RDMAPoolConfig) OfFile() RDMAPoolConfig {
	if c.DeviceNodes == "" && !c.Exclusive() {
		c.DeviceNodes = RDMANodesAll
	}
	return c
}

// Validate returns every mistake in the spec; path is the field that holds it.
func (s *RDMAPoolSpec) Validate(path *field.Path) field.ErrorList {
	errs := s.RDMAPoolConfig.Validate(path)
	if s.NodeSelector != nil {
		errs = append(errs, metavalidation.ValidateLabelSelector(s.NodeSelector, metavalidation.LabelSelectorValidationOptions{},
			path.Child("nodeSelector"))...)
	}
	return errs
}

// Selects reports whether a node with these labels has the pool. The selector must be valid.
func (s *RDMAPoolSpec) Selects(nodeLabels map[string]string) bool {
	if s.NodeSelector == nil {
		return true
	}
	selector, err := metav1.LabelSelectorAsSelector(s.NodeSelector)
	return err == nil && selector.Matches(labels.Set(nodeLabels))
}

// Validate returns every mistake in the entry; path is the field that holds it.
func (c *RDMAPoolConfig) Validate(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	errs = append(errs, c.validateName(path)...)
	at := path.Child("rdmaHcaMax")
	switch {
	case c.RDMAHCAMax < 0:
		errs = append(errs, field.Invalid(at, c.RDMAHCAMax, "must not be negative"))
	case c.RDMAHCAMax > MaxRDMAUnits:
		errs = append(errs, field.Invalid(at, c.RDMAHCAMax, fmt.Sprintf("must be at most %d: the kubelet takes no longer list of devices",
			MaxRDMAUnits)))
	case c.RDMAHCAMax != 0 && c.Exclusive():
		errs = append(errs, field.Invalid(at, c.RDMAHCAMax,
			"must be 0 or absent with mode Exclusive: there a unit is a whole HCA, and the node has as many as HCAs"))
	}
	if c.Mode != "" && c.Mode != RDMAShared && c.Mode != RDMAExclusive {
		errs = append(errs, field.NotSupported(path.Child("mode"), c.Mode, []RDMAPoolMode{RDMAShared, RDMAExclusive}))
	}
	if c.DeviceNodes != "" && c.DeviceNodes != RDMANodesAllocated && c.DeviceNodes != RDMANodesAll {
		errs = append(errs, field.NotSupported(path.Child("deviceNodes"), c.DeviceNodes, []RDMADeviceNodes{RDMANodesAllocated, RDMANodesAll}))
	}
	if c.DeviceNodes == RDMANodesAll && c.Exclusive() {
		errs = append(errs, field.Invalid(path.Child("deviceNodes"), c.DeviceNodes,
			"must be Allocated with mode Exclusive: a pod must not see other pods' HCAs"))
	}
	selects := c.Selectors != nil && !c.Selectors.empty()
	switch {
	case len(c.Devices) > 0 && selects:
		errs = append(errs, field.Forbidden(path.Child("devices"), "either devices or selectors, not both: move the names to selectors.ifNames"))
	case len(c.Devices) == 0 && !selects:
		errs = append(errs, field.Required(path.Child("selectors"), `at least one selector, such as "vendors": ["15b3"], or devices`))
	}
	errs = append(errs, each(path.Child("devices"), c.Devices, ifName.MatchString, ifNameRule)...)
	if c.Selectors != nil {
		errs = append(errs, c.Selectors.validate(path.Child("selectors"))...)
	}
	return errs
}

func (c *RDMAPoolConfig) validateName(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	at := path.Child("resourceName")
	switch {
	case c.ResourceName == "":
		errs = append(errs, field.Required(at, "the resource's name, such as hca_shared_devices_a"))
	case !resourceName.MatchString(c.ResourceName):
		errs = append(errs, field.Invalid(at, c.ResourceName, "must be letters, digits and _ (^[a-zA-Z0-9_]+$)"))
	default:
		for _, message := range validation.IsQualifiedName("x/" + c.ResourceName) {
			errs = append(errs, field.Invalid(at, c.ResourceName, message))
		}
	}
	if c.ResourcePrefix != "" {
		at := path.Child("resourcePrefix")
		for _, message := range validation.IsDNS1123Subdomain(c.ResourcePrefix) {
			errs = append(errs, field.Invalid(at, c.ResourcePrefix, message))
		}
		if c.ResourcePrefix == "kubernetes.io" || strings.HasSuffix(c.ResourcePrefix, ".kubernetes.io") ||
			strings.HasPrefix(c.ResourcePrefix, "requests.") {
			errs = append(errs, field.Invalid(at, c.ResourcePrefix,
				"must be a domain of your own: Kubernetes keeps kubernetes.io and requests. for itself"))
		}
	}
	return errs
}

func (s *RDMASelectors) empty() bool {
	return len(s.Vendors)+len(s.DeviceIDs)+len(s.Drivers)+len(s.IfNames)+len(s.LinkTypes)+len(s.PCIAddresses)+len(s.PFNames)+len(
		s.RootDevices)+
		len(s.ACPIIndexes)+len(s.PKeys)+len(s.LinkLayers)+len(s.NUMANodes) == 0 && s.MinRateGbps == 0 && !s.IsRDMA
}

const (
	idRule      = "must be four hexadecimal digits without 0x, such as 15b3"
	ifNameRule  = "must be the name of a network interface: 1 to 15 characters without blanks, slashes and colons"
	rangeRule   = "may be followed by # and virtual functions, such as #0,2-7"
	addressRule = "must be a PCI address, such as 0000:3b:00.0"
)

func (s *RDMASelectors) validate(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	errs = append(errs, each(path.Child("vendors"), s.Vendors, pciID.MatchString, idRule)...)
	errs = append(errs, each(path.Child("deviceIDs"), s.DeviceIDs, pciID.MatchString, idRule)...)
	errs = append(errs, each(path.Child("drivers"), s.Drivers, driverName.MatchString,
		"must be the name of a kernel driver, such as mlx5_core")...)
	errs = append(errs, each(path.Child("ifNames"), s.IfNames, ifName.MatchString, ifNameRule)...)
	errs = append(errs, oneOf(path.Child("linkTypes"), s.LinkTypes, "ether", "infiniband")...)
	errs = append(errs, each(path.Child("pciAddresses"), s.PCIAddresses, pciAddress.MatchString, addressRule)...)
	errs = append(errs, each(path.Child("acpiIndexes"), s.ACPIIndexes, isACPIIndex,
		"must be a decimal number from 1 without leading zeros, such as 101, a function's acpi_index")...)
	errs = append(errs, each(path.Child("pfNames"), s.PFNames, ranged(ifName), ifNameRule+"; it "+rangeRule)...)
	errs = append(errs, each(path.Child("rootDevices"), s.RootDevices, ranged(pciAddress), addressRule+"; it "+rangeRule)...)
	errs = append(errs, each(path.Child("pKeys"), s.PKeys, isPKey, "must be a partition key, 0x0001 to 0xffff")...)
	errs = append(errs, oneOf(path.Child("linkLayers"), s.LinkLayers, "InfiniBand", "Ethernet")...)
	for i, node := range s.NUMANodes {
		if node < 0 {
			errs = append(errs, field.Invalid(path.Child("numaNodes").Index(i), node,
				"must not be negative; a device whose NUMA node is unknown matches none"))
		}
	}
	if s.MinRateGbps < 0 {
		errs = append(errs, field.Invalid(path.Child("minRateGbps"), s.MinRateGbps, "must not be negative"))
	}
	return errs
}

func each(path *field.Path, values []string, valid func(string) bool, rule string) field.ErrorList {
	var errs field.ErrorList
	seen := make(map[string]bool, len(values))
	for i, value := range values {
		switch {
		case !valid(value):
			errs = append(errs, field.Invalid(path.Index(i), value, rule))
		case seen[value]:
			errs = append(errs, field.Duplicate(path.Index(i), value))
		}
		seen[value] = true
	}
	return errs
}

func oneOf(path *field.Path, values []string, allowed ...string) field.ErrorList {
	var errs field.ErrorList
	for i, value := range values {
		found := false
		for _, a := range allowed {
			found = found || a == value
		}
		if !found {
			errs = append(errs, field.NotSupported(path.Index(i), value, allowed))
		}
	}
	return errs
}

// isACPIIndex reports whether text has the form of the kernel's acpi_index: 32 bits in decimal, and not 0, which is no index.
func isACPIIndex(text string) bool {
	index, err := strconv.ParseUint(text, 10, 32)
	return err == nil && index > 0 && text[0] != '0'
}

func isPKey(text string) bool {
	_, err := ParsePKey(text)
	return err == nil
}

// ranged makes a check of "name" or "name#0,2-7" from a check of the name.
func ranged(name *regexp.Regexp) func(string) bool {
	return func(text string) bool {
		before, _, err := ParseVFRange(text)
		return err == nil && name.MatchString(before)
	}
}
