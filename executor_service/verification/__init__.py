"""Verifications: candidates run against their cases. The rules by which they are judged are in `grading`."""
