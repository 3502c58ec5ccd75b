//! Links and hosts in virtual time around the MPT core.
