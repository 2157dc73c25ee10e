// Package onenode moves a node from NVIDIA's DRA driver to gpufabric and back, by the commands of docs/migrate.md, while both drivers serve
// claims of one DeviceClass on the other nodes of a simulated cluster.
package onenode
