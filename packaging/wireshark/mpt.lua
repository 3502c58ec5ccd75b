-- Wireshark dissector for MPT: what is in the clear on the wire.
--
-- Native mode: handshake messages and the header of data datagrams (docs/protocol.md). Plain mode: liveness probes.
-- All other GRE-in-UDP goes to Wireshark's own GRE dissector.
--
-- Install: copy this file into the folder "Personal Lua Plugins" (Help, About Wireshark, Folders), or start with
--     wireshark -X lua_script:mpt.lua
-- UDP port 4754 is dissected by itself. Other ports are recognised by the first octets and the length of the payload.

local mpt = Proto("mpt", "MPT multipath tunnel")

local GRE_IN_UDP = 4754
local DATA_TYPE, HANDSHAKE_TYPE = 0x88b5, 0x88b6
local INITIATION, RESPONSE, COOKIE_REPLY = 1, 2, 3
local HEADER, TAG, MAC = 12, 16, 16

local kinds = { [INITIATION] = "Handshake initiation", [RESPONSE] = "Handshake response", [COOKIE_REPLY] = "Cookie reply" }
local probe_kinds = { [1] = "Probe", [2] = "Probe reply" }

local f = {
    flags = ProtoField.uint16("mpt.gre.flags", "GRE flags and version", base.HEX),
    protocol = ProtoField.uint16("mpt.gre.protocol", "GRE protocol type", base.HEX),
    kind = ProtoField.uint8("mpt.handshake.type", "Type", base.DEC, kinds),
    sender = ProtoField.uint24("mpt.handshake.sender", "Sender's session index", base.HEX),
    receiver = ProtoField.uint24("mpt.handshake.receiver", "Receiver's session index", base.HEX),
    reserved = ProtoField.uint8("mpt.handshake.reserved", "Reserved", base.HEX),
    ephemeral = ProtoField.bytes("mpt.handshake.ephemeral", "Ephemeral public key"),
    static = ProtoField.bytes("mpt.handshake.static", "Sealed static key"),
    payload = ProtoField.bytes("mpt.handshake.payload", "Sealed payload"),
    payload_len = ProtoField.uint16("mpt.handshake.payload_len", "Length of the sealed payload"),
    mac1 = ProtoField.bytes("mpt.handshake.mac1", "MAC1"),
    mac2 = ProtoField.bytes("mpt.handshake.mac2", "MAC2"),
    has_cookie = ProtoField.bool("mpt.handshake.has_cookie", "MAC2 is present"),
    nonce = ProtoField.bytes("mpt.cookie.nonce", "Nonce"),
    cookie = ProtoField.bytes("mpt.cookie.sealed", "Sealed cookie"),
    session = ProtoField.uint24("mpt.session", "Receiver's session index", base.HEX),
    path = ProtoField.uint8("mpt.path", "Path", base.HEX),
    slot = ProtoField.uint8("mpt.path.slot", "Slot", base.DEC, nil, 0xf8),
    generation = ProtoField.uint8("mpt.path.generation", "Generation", base.DEC, nil, 0x07),
    number = ProtoField.uint32("mpt.number", "Packet number, low 32 bits", base.DEC),
    sealed = ProtoField.bytes("mpt.sealed", "Sealed frames"),
    sealed_len = ProtoField.uint16("mpt.sealed_len", "Length of the sealed frames"),
    tag = ProtoField.bytes("mpt.tag", "Authentication tag"),
    probe_kind = ProtoField.uint8("mpt.probe.type", "Type", base.DEC, probe_kinds),
    probe_path = ProtoField.uint8("mpt.probe.path", "Path number of the sender", base.DEC),
    probe_version = ProtoField.uint16("mpt.probe.version", "Version of the set of dead paths", base.DEC),
    probe_dead = ProtoField.uint32("mpt.probe.dead", "Dead paths of the sender", base.HEX),
    probe_stamp = ProtoField.uint64("mpt.probe.stamp", "Stamp", base.HEX),
}
local fields = {}
for _, field in pairs(f) do fields[#fields + 1] = field end
mpt.fields = fields

local bad_length = ProtoExpert.new("mpt.bad_length", "The length fits no message of this type", expert.group.MALFORMED, expert.severity.ERROR)
local unknown_type = ProtoExpert.new("mpt.unknown_type", "Unknown message type", expert.group.UNDECODED, expert.severity.WARN)
mpt.experts = { bad_length, unknown_type }

-- The lengths that a receiver accepts: sealed payloads have a lower bound, handshake messages end at 548 octets.
local LONGEST = 548
local shortest = { [INITIATION] = 162, [RESPONSE] = 106, [COOKIE_REPLY] = 64 }

local function has_good_length(kind, len)
    if kind == COOKIE_REPLY then return len == shortest[kind] end
    return len >= shortest[kind] and len <= LONGEST
end

local function gre_header(tvb, tree)
    tree:add(f.flags, tvb(0, 2))
    tree:add(f.protocol, tvb(2, 2))
end

local function macs(tvb, tree, at)
    tree:add(f.mac1, tvb(at, MAC))
    local mac2 = tvb(at + MAC, MAC)
    tree:add(f.mac2, mac2)
    local present = mac2:bytes():tohex() ~= string.rep("00", MAC)
    tree:add(f.has_cookie, mac2, present):set_generated()
end

local function sealed_payload(tvb, tree, from, to)
    tree:add(f.payload, tvb(from, to - from))
    tree:add(f.payload_len, tvb(from, to - from), to - from):set_generated()
end

local function initiation(tvb, tree)
    local macs_at = tvb:len() - 2 * MAC
    tree:add(f.sender, tvb(5, 3))
    tree:add(f.ephemeral, tvb(8, 32))
    tree:add(f.static, tvb(40, 48))
    sealed_payload(tvb, tree, 88, macs_at)
    macs(tvb, tree, macs_at)
    return string.format("sender=0x%06x", tvb(5, 3):uint())
end

local function response(tvb, tree)
    local macs_at = tvb:len() - 2 * MAC
    tree:add(f.sender, tvb(5, 3))
    tree:add(f.reserved, tvb(8, 1))
    tree:add(f.receiver, tvb(9, 3))
    tree:add(f.ephemeral, tvb(12, 32))
    sealed_payload(tvb, tree, 44, macs_at)
    macs(tvb, tree, macs_at)
    return string.format("sender=0x%06x receiver=0x%06x", tvb(5, 3):uint(), tvb(9, 3):uint())
end

local function cookie_reply(tvb, tree)
    tree:add(f.receiver, tvb(5, 3))
    tree:add(f.nonce, tvb(8, 24))
    tree:add(f.cookie, tvb(32, 16))
    tree:add(f.tag, tvb(48, TAG))
    return string.format("receiver=0x%06x", tvb(5, 3):uint())
end

local readers = { [INITIATION] = initiation, [RESPONSE] = response, [COOKIE_REPLY] = cookie_reply }

local function handshake(tvb, pinfo, tree)
    gre_header(tvb, tree)
    if tvb:len() < 8 then
        tree:add_proto_expert_info(bad_length)
        return
    end
    local kind = tvb(4, 1):uint()
    tree:add(f.kind, tvb(4, 1))
    local read = readers[kind]
    if read == nil then
        tree:add_proto_expert_info(unknown_type)
    elseif not has_good_length(kind, tvb:len()) then
        tree:add_proto_expert_info(bad_length)
    else
        pinfo.cols.info = kinds[kind] .. ", " .. read(tvb, tree)
    end
end

local function data(tvb, pinfo, tree)
    gre_header(tvb, tree)
    tree:add(f.session, tvb(4, 3))
    local path = tree:add(f.path, tvb(7, 1))
    path:add(f.slot, tvb(7, 1))
    path:add(f.generation, tvb(7, 1))
    tree:add(f.number, tvb(8, 4))
    local len = tvb:len() - HEADER - TAG
    if len > 0 then tree:add(f.sealed, tvb(HEADER, len)) end
    tree:add(f.sealed_len, tvb(HEADER, len), len):set_generated()
    tree:add(f.tag, tvb(HEADER + len, TAG))
    local octet = tvb(7, 1):uint()
    pinfo.cols.info = string.format("Data, session=0x%06x path=%d.%d number=%d len=%d", tvb(4, 3):uint(),
        math.floor(octet / 8), octet % 8, tvb(8, 4):uint(), len)
end

local function probe(tvb, pinfo, tree)
    gre_header(tvb, tree)
    local kind = tvb(4, 1):uint()
    tree:add(f.probe_kind, tvb(4, 1))
    tree:add(f.probe_path, tvb(5, 1))
    tree:add(f.probe_version, tvb(6, 2))
    tree:add(f.probe_dead, tvb(8, 4))
    tree:add(f.probe_stamp, tvb(12, 8))
    pinfo.cols.info = string.format("%s, path=%d", probe_kinds[kind] or "Unknown probe", tvb(5, 1):uint())
end

-- What a payload is: a function that dissects it, or nil where it is not MPT's own.
local function reader_of(tvb)
    if tvb:len() < 4 then return nil end
    local flags, protocol = tvb(0, 2):uint(), tvb(2, 2):uint()
    if protocol == DATA_TYPE and flags == 0x3000 and tvb:len() >= HEADER + TAG then return data end
    if protocol == DATA_TYPE and flags == 0 and tvb:len() >= 20 then return probe end
    if protocol == HANDSHAKE_TYPE and flags == 0 then return handshake end
    return nil
end

-- Wireshark does not register its GRE dissector by name, only for IP protocol 47.
local gre = DissectorTable.get("ip.proto"):get_dissector(47)

function mpt.dissector(tvb, pinfo, root)
    local read = reader_of(tvb)
    if read == nil then return gre:call(tvb, pinfo, root) end
    pinfo.cols.protocol = "MPT"
    read(tvb, pinfo, root:add(mpt, tvb()))
    return tvb:len()
end

-- On other ports a datagram is MPT's only if its first octets and its length both fit.
local function is_ours(tvb)
    local read = reader_of(tvb)
    if read ~= handshake then return read == data end
    if tvb:len() < 8 then return false end
    local kind = tvb(4, 1):uint()
    return kinds[kind] ~= nil and has_good_length(kind, tvb:len())
end

mpt:register_heuristic("udp", function(tvb, pinfo, root)
    if not is_ours(tvb) then return false end
    mpt.dissector(tvb, pinfo, root)
    return true
end)

DissectorTable.get("udp.port"):add(GRE_IN_UDP, mpt)
