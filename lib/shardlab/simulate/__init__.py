"""What the same run would cost elsewhere: a slow link under real ranks on one machine."""
