# Turns a container of the node's root file system into a kind node, the way kind's own base image is made. Runs inside that container, after the
# files were copied in; K8S_VERSION is set, and /kind/images.tar is what kubeadm will want.

# Only what a node needs is started at boot.
find /usr/lib/systemd/system/sysinit.target.wants/ -name systemd-tmpfiles-setup.service -delete
rm -f /usr/lib/systemd/system/{multi-user,local-fs,basic,timers}.target.wants/*
rm -f /usr/lib/systemd/system/sockets.target.wants/*{udev,initctl}*
rm -f /etc/systemd/system/*.wants/*
echo ReadKMsg=no >>/etc/systemd/journald.conf
ln -sf /usr/lib/systemd/systemd /usr/sbin/init
systemctl enable --quiet kubelet.service containerd.service undo-mount-hacks.service
systemctl mask --quiet systemd-binfmt.service

mkdir -p /etc/kubernetes/manifests /opt/cni/bin /etc/containerd/certs.d
cp -a /usr/lib/cni/* /opt/cni/bin/
echo "$K8S_VERSION" >/kind/version
# What every container's OCI spec starts from.
ctr oci spec | jq '.hooks.createContainer += [{"path": "/kind/bin/mount-product-files.sh"}] | del(.process.rlimits)' >/etc/containerd/cri-base.json

containerd >/tmp/containerd.log 2>&1 &
for ((i = 0; ; i++)); do
	ctr version >/dev/null 2>&1 && break
	[ "$i" -lt 150 ] || { tail /tmp/containerd.log >&2; exit 1; }
	sleep 0.2
done
ctr -n k8s.io images import --label=io.cri-containerd.pinned=pinned --no-unpack /kind/images.tar
kill %1
wait %1 || true
rm -rf /kind/images.tar /tmp/* /run/containerd
