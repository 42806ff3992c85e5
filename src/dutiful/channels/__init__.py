"""Channels: work that SQL functions ask for, and providers do."""

from dutiful.channels.channels import ChannelCall, Channels
from dutiful.channels.providers.email import EmailRequest, SmtpEmail
from dutiful.channels.providers.files import FileDeletion, HttpFiles
from dutiful.channels.providers.sms import HttpSms, SmsRequest

__all__ = [
    "ChannelCall",
    "Channels",
    "EmailRequest",
    "FileDeletion",
    "HttpFiles",
    "HttpSms",
    "SmsRequest",
    "SmtpEmail",
]
