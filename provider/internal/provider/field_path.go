package provider

import (
	"strconv"
	"strings"
	"unicode"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// addFieldErrors reports what the API's own validation says at the attributes of the configuration. The specs and the schemas differ only in how
// names are written (pciAddresses, pci_addresses).
func addFieldErrors(diags *diag.Diagnostics, kind string, errs field.ErrorList) {
	for _, err := range errs {
		at := attributePath(err.Field)
		diags.AddAttributeError(at, "Invalid "+kind, at.String()+": "+err.ErrorBody()+".")
	}
}

// attributePath turns spec.selectors.pciAddresses[0] into selectors.pci_addresses[0].
func attributePath(fieldPath string) path.Path {
	at := path.Empty()
	for _, part := range strings.Split(strings.TrimPrefix(fieldPath, "spec."), ".") {
		name, index, indexed := strings.Cut(part, "[")
		at = at.AtName(snakeCase(name))
		if i, err := strconv.Atoi(strings.TrimSuffix(index, "]")); indexed && err == nil {
			at = at.AtListIndex(i)
		}
	}
	return at
}

// snakeCase writes an API field's name as an attribute's: a run of capitals is one word (deviceIDs: device_ids, pciAddresses: pci_addresses).
func snakeCase(name string) string {
	var out strings.Builder
	runes := []rune(name)
	for i, r := range runes {
		if unicode.IsUpper(r) && i > 0 && !unicode.IsUpper(runes[i-1]) {
			out.WriteByte('_')
		}
		out.WriteRune(unicode.ToLower(r))
	}
	return out.String()
}
