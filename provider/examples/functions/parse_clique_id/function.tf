output "clique" {
  value = provider::gpufabric::parse_clique_id("69a19a31-f41c-45a5-8245-579b6bce5bdd.32766").clique_id # 32766
}
