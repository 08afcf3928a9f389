from claims_page import Page


def memory(context):
    return Page("5")
