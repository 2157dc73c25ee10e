// Package terraform stands in for a package that only Terraform's own tests import.
package terraform
