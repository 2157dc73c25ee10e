module github.com/hashicorp/terraform/internal

go 1.26.6
