//! Sample files of the original for tests: the pair of hosts of the measurements, in INI format.

pub(super) const INTERFACE: &str = "\
; conf/interface.conf
[general]
tunnel_num = 1
accept_remote = 1
cmdport_local = 60456
cmd_timeout = 10

[tun_0]
name = tunh
mtu = 1440
ipv4_addr = 10.77.0.1/24
ipv6_addr = fd78::1/64
";

pub(super) const CONNECTION: &str = "\
; conf/connections/c.conf
[connection]
name = c_A
permission = 3
ip_ver = 4
ip_local = 10.77.0.1
local_port = 4754
ip_remote = 10.77.0.2
remote_port = 4754
remote_cmd_port = 60456
path_count = 2
network_count = 0
status = 0
reorder_window = 0
max_buffdelay_msec = 300
auth_type = 0

[path_0]
interface_name = v0
ip_ver = 4
private_ipaddr = 192.168.10.1
public_ipaddr = 192.168.10.1
gw_ipaddr = 192.168.10.2
remote_ipaddr = 192.168.10.2
keepalive_time = 5
dead_time = 11
weight_out = 1
weight_in = 1
status = 0
cmd_default = 1

[path_1]
interface_name = v1
ip_ver = 4
private_ipaddr = 192.168.11.1
public_ipaddr = 192.168.11.1
gw_ipaddr = 192.168.11.2
remote_ipaddr = 192.168.11.2
keepalive_time = 5
dead_time = 11
weight_out = 1
weight_in = 1
status = 0
";
