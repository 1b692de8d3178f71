"""The probe of real ranks."""
